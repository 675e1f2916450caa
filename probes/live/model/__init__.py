"""Samples of the live view, and what its detectors share."""
