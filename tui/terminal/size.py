"""The largest terminal that gdrtop draws for: sizes come from outside, and each cell takes memory."""

from __future__ import annotations

# About twice what a wall of 8K screens shows in a small font; larger ones are filled in part.
MOST_COLUMNS, MOST_ROWS = 1000, 500


def clamped(columns: int, rows: int) -> tuple[int, int]:
    """Return a size in columns and rows within the limits."""
    return min(max(columns, 1), MOST_COLUMNS), min(max(rows, 1), MOST_ROWS)
