"""First-time setup: where the node stands, what is left to do, and the files that a fleet of it needs."""
