"""A running action."""
