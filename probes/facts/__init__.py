"""What a node is made of: one subject a file, frozen dataclasses and a function that reads them."""
