"""`gdrtop prove`."""
