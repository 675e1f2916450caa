"""The overview of the node."""
