"""Draws setup: where the node stands, its steps, and one step in detail."""
