"""`gdrtop explain`."""
