"""Commands for several nodes: `gdrtop fleet …`."""
