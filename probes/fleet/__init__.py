"""Facts about several nodes: which differ from the rest, and the bandwidth between them."""
