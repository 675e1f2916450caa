"""A plan, shown before it runs."""
