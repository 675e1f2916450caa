"""Views of many nodes."""
