"""The commands that a simulated node obeys."""
