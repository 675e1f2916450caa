"""`gdrtop fleet`: what it does with many nodes, one file a command."""
