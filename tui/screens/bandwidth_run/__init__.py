"""A running bandwidth test."""
