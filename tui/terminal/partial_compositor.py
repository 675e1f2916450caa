"""Draw only the panes of which something changed, where Textual draws all within the bounds of the changes.

Compositor.render_partial_update renders each widget that meets the smallest rectangle around all changed
regions. If a figure changes in the first row and one in the last, that is every widget of the screen, with
the containers behind the panes: fifteen on the overview each second, of which seven have changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Region
from textual.screen import Screen
from textual.widget import Widget

from tui.terminal.textual_version import is_tested

Placed = Mapping[Widget, tuple[Region, Region]]  # region and clip of each widget, the foremost first


class PartialCompositor(Compositor):
    """Textual's compositor, which leaves out what cannot be seen in any changed region."""

    def render_partial_update(self) -> ChopsUpdate | None:
        """Return the update, or None if nothing has changed."""
        visible, cuts = self.visible_widgets, self.cuts
        self._visible_widgets = seen = seen_in(self._dirty_regions, visible)
        try:
            return super().render_partial_update()
        finally:
            if self._visible_widgets is seen and self._cuts is cuts:  # else drawing has begun a new layout
                self._visible_widgets = visible


def draw_partially(screen: Screen[Any]) -> None:
    """Have a new screen drawn by it, if this version of Textual was tested with it."""
    if is_tested():
        screen._compositor = PartialCompositor()


def seen_in(regions: Iterable[Region], visible: Placed) -> dict[Widget, tuple[Region, Region]]:
    """Return the widgets that are seen in some of the regions, in the same order.

    A widget that contains a region hides everything behind it there: Textual mixes no cells.
    """
    shown = [(widget, region.intersection(clip)) for widget, (region, clip) in visible.items()]
    seen: set[Widget] = set()
    for x, y, width, height in regions:
        right, bottom = x + width, y + height
        for widget, (left, top, shown_width, shown_height) in shown:
            if left >= right or top >= bottom or left + shown_width <= x or top + shown_height <= y:
                continue
            seen.add(widget)
            if left <= x and top <= y and left + shown_width >= right and top + shown_height >= bottom:
                break
    return {widget: placed for widget, placed in visible.items() if widget in seen}
