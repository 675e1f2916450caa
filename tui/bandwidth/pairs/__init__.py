"""Bandwidth tests between pairs of nodes."""
