"""`gdrtop manifest`: what other nodes like this one need."""
