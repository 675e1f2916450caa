"""An update of the screen that names its parts, so that nothing around them need be drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.control import Control
from textual._compositor import CompositorUpdate
from textual.strip import Strip

if TYPE_CHECKING:
    from rich.console import Console

# Row, column and content of a part of the screen.
Part = tuple[int, int, Iterable[Strip]]


class PartsUpdate(CompositorUpdate):
    """Parts of the screen, by row and column."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts

    def render_segments(self, console: Console) -> str:
        """Return what writes the parts in Textual's way."""
        return "".join(
            Control.move_to(column, row).segment.text + "".join(strip.render(console) for strip in strips)
            for row, column, strips in self.parts
        )
