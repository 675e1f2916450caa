"""The documentation site (make site): its pages as Markdown, and what builds and checks them."""
