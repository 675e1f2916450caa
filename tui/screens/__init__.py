"""Screens, composed of widgets."""
