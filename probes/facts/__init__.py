"""Facts about a node: one subject per file, frozen dataclasses and a function `probe` that reads them."""
