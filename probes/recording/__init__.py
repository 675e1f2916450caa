"""Recordings of a node: made, redacted, archived, replayed."""
