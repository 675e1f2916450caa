"""Judges a node from its facts."""
