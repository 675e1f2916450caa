"""`gdrtop config`: what is configured, and the file that has it."""
