"""Bandwidth tests: started, read, ended, kept."""
