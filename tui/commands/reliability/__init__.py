"""`gdrtop reliability`."""
