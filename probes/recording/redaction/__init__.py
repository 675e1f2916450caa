"""Redaction: replaces what identifies a node, its users and devices in a recording."""
