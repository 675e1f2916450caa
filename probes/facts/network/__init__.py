"""The network of the node: interfaces, routes, and what depends on them."""
