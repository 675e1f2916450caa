"""Bandwidth tests: which there are on a node, how they are run and ended, and what they measured."""
