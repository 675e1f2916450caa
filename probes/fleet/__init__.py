"""Facts about several nodes: which differ from the rest, a job on them, and the bandwidth between them."""
