"""The file tree of a simulated node."""
