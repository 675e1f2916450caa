"""The command `gdrtop bench`."""
