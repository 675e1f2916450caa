"""The findings."""
