"""Checks of nvidia-peermem."""
