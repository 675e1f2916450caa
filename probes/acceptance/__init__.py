"""Acceptance: what an audit asks of a node, and how it is answered."""
