"""PCI functions, their capabilities, links and errors."""
