"""Checks of the operating system, containers, libraries and tools."""
