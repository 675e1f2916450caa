"""Draws what many nodes have in common, and a job that runs on several of them."""
