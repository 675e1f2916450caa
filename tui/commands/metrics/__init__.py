"""`gdrtop metrics`: the metrics of a node for Prometheus, as text and over HTTP."""
