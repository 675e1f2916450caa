"""`gdrtop watch`: the most recent hours on disk, and a recording around every event."""
