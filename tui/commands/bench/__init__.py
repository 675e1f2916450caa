"""`gdrtop bench`: its options, one run with its tests, and what it prints."""
