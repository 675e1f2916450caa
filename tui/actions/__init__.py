"""Doing something about it: what may run, what objects to it, running it, and the log of what ran."""
