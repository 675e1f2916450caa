"""Files that belong to gdrtop."""
