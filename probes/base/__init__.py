"""Basics for all packages: unknown values, text, origins, plans as data, JSON."""
