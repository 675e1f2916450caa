"""One run of `gdrtop bench`: its plan, its tests and its output."""
