"""Draw only what has changed, where Textual draws all panes within the bounds of the changes.

Compositor.render_partial_update renders each widget that meets the smallest rectangle around all changed
regions. If a figure changes in the first row and one in the last, that is every widget of the screen, with
the containers behind the panes: fifteen on the overview each second, of which seven have changed. Of a pane
of which one figure has changed, it renders all lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.control import Control
from rich.segment import Segment
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from tui.terminal.textual_version import is_tested
from widgets.base.lines import has_plain_width
from widgets.base.lines_view import LinesView

if TYPE_CHECKING or is_tested():
    from textual._compositor import ChopsUpdate, Compositor, CompositorUpdate
else:  # another version may not have them, and then nothing here uses them
    ChopsUpdate = Compositor = CompositorUpdate = object

if TYPE_CHECKING:
    from rich.console import Console
    from typing_extensions import Self

# Row, column and content of a part of the screen.
Part = tuple[int, int, Iterable[Strip]]
Placed = Mapping[Widget, tuple[Region, Region]]  # region and clip of each widget, the foremost first


class PartsUpdate(CompositorUpdate):
    """An update of parts of the screen, by row and column, so that nothing around them need be drawn."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts

    def render_segments(self, console: Console) -> str:
        """Return what writes the parts in Textual's way."""
        return "".join(
            Control.move_to(column, row).segment.text + "".join(strip.render(console) for strip in strips)
            for row, column, strips in self.parts
        )


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

    _own_screen: Screen[Any] | None = None

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        """Have these regions of the content, or with none the whole pane, drawn again."""
        is_plain = regions and repaint and not layout and not recompose
        # Of other versions, no private name is taken for granted.
        is_shown = getattr(self, "_is_mounted", False) and self.is_running and self.display
        if not is_plain or not is_shown:
            return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)
        if self._own_screen is None:
            self._own_screen = self.screen
        screen = self._own_screen
        if not isinstance(getattr(screen, "_compositor", None), PartialCompositor):
            return super().refresh(*regions)
        corner = self.content.offset
        placed = [region.translate(corner) for region in regions]
        self._repaint_regions.update(placed)
        self._styles_cache.set_dirty(*placed)
        screen._dirty_widgets.add(self)
        screen.check_idle()
        return self


def parts_of_lines(regions: Iterable[Region], visible: Placed) -> list[Part]:
    """Return the cells of these regions, top down, if all are lines of panes; else nothing."""
    shown = _shown(visible)
    parts: list[Part] = []
    lines_of: dict[Widget, _PaneLines] = {}
    for region in regions:
        seen = list(_seen(region, shown))
        if len(seen) != 1:
            return []
        (widget,) = seen
        lines = lines_of.get(widget)
        if lines is None:
            if not isinstance(widget, LinesView) or widget.opacity != 1:
                return []
            lines = lines_of[widget] = _PaneLines(widget, visible[widget][0])
        if not lines.content.contains_region(region):
            return []
        x, y, width, height = region
        parts.extend((row, x, (lines.cells(row, x, x + width),)) for row in range(y, y + height))
    parts.sort(key=lambda part: part[:2])
    return parts


class _PaneLines:
    """The lines of a pane as the screen shows them."""

    def __init__(self, view: LinesView, place: Region) -> None:
        self._view = view
        self.content = view.content.translate(place.offset)
        self._filters = view.get_line_filters()

    def cells(self, row: int, left: int, right: int) -> Strip:
        """Return the cells of a row of the screen from one column to another."""
        strip = self._view.render_line(row - self.content.y)
        for line_filter in self._filters:
            strip = strip.apply_filter(line_filter, self._view.background_colors[1])
        return cropped(strip, left - self.content.x, right - self.content.x)


def cropped(strip: Strip, left: int, right: int) -> Strip:
    """Return the cells of a strip from one to another: Strip.crop, in a fifth of its time for usual texts."""
    if not left and right == strip.cell_length:
        return strip
    segments: list[Segment] = []
    start = 0
    for text, style, control in strip:
        if control or not has_plain_width(text):
            return strip.crop(left, right)
        end = start + len(text)
        if end > left:
            segments.append(Segment(text[max(0, left - start) : right - start], style))
        if end >= right:
            break
        start = end
    return Strip(segments, right - left)


def seen_in(regions: Iterable[Region], visible: Placed) -> dict[Widget, tuple[Region, Region]]:
    """Return the widgets that are seen in some of the regions, in the same order."""
    shown = _shown(visible)
    seen = {widget for region in regions for widget in _seen(region, shown)}
    return {widget: placed for widget, placed in visible.items() if widget in seen}


def _shown(visible: Placed) -> list[tuple[Widget, Region]]:
    return [(widget, place.intersection(clip)) for widget, (place, clip) in visible.items()]


def _seen(region: Region, shown: Iterable[tuple[Widget, Region]]) -> Iterator[Widget]:
    """Yield the widgets that are seen in a region, the foremost first.

    A widget that contains a region hides everything behind it there: Textual mixes no cells.
    """
    x, y, width, height = region
    right, bottom = x + width, y + height
    for widget, (left, top, shown_width, shown_height) in shown:
        if left >= right or top >= bottom or left + shown_width <= x or top + shown_height <= y:
            continue
        yield widget
        if left <= x and top <= y and left + shown_width >= right and top + shown_height >= bottom:
            return
