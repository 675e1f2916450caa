"""Checks of NICs and their ports."""
