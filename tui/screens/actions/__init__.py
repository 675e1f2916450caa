"""The list of actions."""
