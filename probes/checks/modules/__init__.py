"""Checks of kernel modules."""
