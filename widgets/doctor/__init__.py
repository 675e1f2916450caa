"""Views of findings, plans and actions."""
