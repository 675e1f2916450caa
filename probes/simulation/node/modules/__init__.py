"""Kernel modules of a simulated node: files, loading, effects."""
