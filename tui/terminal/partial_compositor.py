"""Draw only what has changed, where Textual draws all panes within the bounds of the changes.

Compositor.render_partial_update renders each widget that meets the smallest rectangle around all changed
regions. If a figure changes in the first row and one in the last, that is every widget of the screen, with
the containers behind the panes: fifteen on the overview each second, of which seven have changed. Of a pane
of which one figure has changed, it renders all lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Region
from textual.screen import Screen
from textual.widget import Widget

from tui.terminal.parts_update import Part, PartsUpdate
from tui.terminal.textual_version import is_tested
from widgets.base.lines_view import LinesView

if TYPE_CHECKING:
    from typing_extensions import Self

Placed = Mapping[Widget, tuple[Region, Region]]  # region and clip of each widget, the foremost first


class PartialCompositor(Compositor):
    """Textual's compositor, which leaves out what cannot be seen in any changed region."""

    def render_partial_update(self) -> ChopsUpdate | PartsUpdate | None:  # type: ignore[override]
        """Return the update, or None if nothing has changed."""
        visible, cuts = self.visible_widgets, self.cuts
        parts = parts_of_lines(self._dirty_regions, visible)
        if parts:
            self._dirty_regions.clear()
            return PartsUpdate(parts)
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


class DirectLinesView(LinesView):
    """A pane that marks its changed cells on its screen itself.

    Textual sends three messages for it, which cost more than drawing the cells.
    """

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        """Have these regions of the content, or with none the whole pane, drawn again."""
        screen = self.screen if regions and self._is_mounted and self.is_attached else None
        is_plain = repaint and not layout and not recompose and self.display
        if screen is None or not is_plain or not isinstance(screen._compositor, PartialCompositor):
            return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)
        left, top = self.content_offset
        placed = [region.translate((left, top)) for region in regions]
        self._repaint_regions.update(placed)
        self._styles_cache.set_dirty(*placed)
        screen._dirty_widgets.add(self)
        screen.check_idle()
        return self


def parts_of_lines(regions: Iterable[Region], visible: Placed) -> list[Part]:
    """Return the cells of these regions, top down, if all are lines of panes; else nothing."""
    parts: list[Part] = []
    for region in regions:
        x, y, width, height = region
        for widget, (place, clip) in visible.items():
            shown = place.intersection(clip)
            if not shown.overlaps(region):
                continue
            if not isinstance(widget, LinesView) or widget.opacity != 1:
                return []
            left, top, room, rows = place.shrink(widget.gutter)
            if not shown.contains_region(region) or not Region(left, top, room, rows).contains_region(region):
                return []
            filters, background = widget.get_line_filters(), widget.background_colors[1]
            for row in range(y, y + height):
                strip = widget.render_line(row - top)
                for line_filter in filters:
                    strip = strip.apply_filter(line_filter, background)
                parts.append((row, x, (strip.crop(x - left, x - left + width),)))
            break
        else:
            return []
    parts.sort(key=lambda part: part[:2])
    return parts


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
