"""Commands that change a simulated node."""
