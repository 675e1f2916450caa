"""Whole screens, composed of widgets."""
