"""Draw the dashboard with ASCII characters only."""

from __future__ import annotations

from functools import lru_cache

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from tui.runtime.printing import ascii_cells


class AsciiFilter(LineFilter):
    """Replace every character outside ASCII, cell by cell."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Replace the characters of a line."""
        return [Segment(_cells(text), style, control) for text, style, control in segments]


@lru_cache(4096)
def _cells(text: str) -> str:
    return text if text.isascii() else ascii_cells(text)
