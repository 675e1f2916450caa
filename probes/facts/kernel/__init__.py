"""The kernel, its log and its modules."""
