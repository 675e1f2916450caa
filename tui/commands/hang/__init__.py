"""`gdrtop hang`."""
