"""Draws what concerns several nodes."""
