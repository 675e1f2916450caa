"""gdrtop's settings: the table of them, where their values are from, and the file that has them."""

PREFIX = "GDRTOP_"
"""Of the environment variables that set a value."""
