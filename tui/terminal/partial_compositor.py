"""Draw only what has changed, where Textual draws all panes within the bounds of the changes.

Compositor.render_partial_update renders each widget that meets the smallest rectangle around all changed
regions. If a figure changes in the first row and one in the last, that is every widget of the screen, with
the containers behind the panes: fifteen on the overview each second, of which seven have changed. Of a pane
of which one figure has changed, it renders all lines. And it draws after two more turns of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.control import Control
from rich.segment import Segment
from textual.filter import LineFilter
from textual.geometry import Offset, Region
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from tui.terminal.textual_version import is_tested
from widgets.base.lines_view import LinesView

if TYPE_CHECKING or is_tested():
    from textual._compositor import ChopsUpdate, Compositor, CompositorUpdate
else:  # another version may not have them, and then nothing here uses them
    ChopsUpdate = Compositor = CompositorUpdate = object

if TYPE_CHECKING:
    from rich.console import Console

# Row, column and content of a part of the screen.
Part = tuple[int, int, Iterable[Iterable[Segment]]]
Placed = Mapping[Widget, tuple[Region, Region]]  # region and clip of each widget, the foremost first


class PartsUpdate(CompositorUpdate):
    """An update of parts of the screen, by row and column, so that nothing around them need be drawn."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts

    def render_segments(self, console: Console) -> str:
        """Return what writes the parts in Textual's way."""
        return "".join(
            Control.move_to(column, row).segment.text
            + "".join(Strip(cells).render(console) for cells in texts)
            for row, column, texts in self.parts
        )


class PartialCompositor(Compositor):
    """Textual's compositor, which leaves out what cannot be seen in any changed region.

    Cells that panes mark are drawn at once, if Textual has nothing else to draw on the screen.
    """

    def __init__(self, screen: Screen[Any]) -> None:
        super().__init__()
        self._screen = screen
        self._marked: dict[LinesView, list[Region]] = {}  # regions of the pane, to be drawn
        self._panes: dict[LinesView, _PaneLines | None] = {}  # None: not seen whole
        self._placed: Placed = {}  # for which these were found

    def mark(self, view: LinesView, regions: Sequence[Region]) -> None:
        """Have these regions of a pane drawn once the current message has been processed."""
        if not self._marked:
            asyncio.get_running_loop().call_soon(self._draw_marked)
        self._marked.setdefault(view, []).extend(regions)
        view._styles_cache.set_dirty(*regions)

    def _draw_marked(self) -> None:
        marked, self._marked = self._marked, {}
        screen = self._screen
        try:
            if not screen.is_running:
                return
            parts = self._parts_of(marked) if self._is_settled else None
            if parts is not None:
                screen.app._display(screen, PartsUpdate(parts))  # type: ignore[arg-type]
                return
            for view, regions in marked.items():
                view._repaint_regions.update(regions)
                screen._dirty_widgets.add(view)
            screen.check_idle()
        except Exception as error:  # as in the handler of a message
            screen.app._handle_exception(error)

    @property
    def _is_settled(self) -> bool:
        """Whether the screen is in front, and nothing on it waits for Textual to draw it."""
        screen, app = self._screen, self._screen.app
        is_waiting = (
            screen._layout_required
            or screen._scroll_required
            or screen._repaint_required
            or screen._recompose_required
            or screen._dirty_widgets
            or self._dirty_regions
            or app._batch_count
        )
        return not is_waiting and app.screen is screen

    def _parts_of(self, marked: Mapping[LinesView, Iterable[Region]]) -> list[Part] | None:
        """Return the marked cells, top down; None if Textual has to draw a pane of them."""
        visible = self.visible_widgets
        if visible is not self._placed:  # a new layout
            self._placed, self._panes = visible, {}
        filters = self._screen.get_line_filters()
        parts: list[Part] = []
        for view, regions in marked.items():
            if view not in self._panes:
                self._panes[view] = _pane(view, visible)
            pane = self._panes[view]
            if pane is None or not pane.is_placed:
                return None
            parts.extend(pane.parts(regions, filters))
        parts.sort(key=lambda part: part[:2])
        return parts

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
        screen._compositor = PartialCompositor(screen)


def _pane(view: LinesView, visible: Placed) -> _PaneLines | None:
    """Return the lines of a pane that is seen whole and unmixed; else None."""
    if view not in visible or view.opacity != 1:
        return None
    place, clip = visible[view]
    pane = _PaneLines(view, place.offset)
    is_whole = clip.contains_region(pane.content) and list(_seen(pane.content, _shown(visible))) == [view]
    return pane if is_whole else None


class _PaneLines:
    """The lines of a pane as the screen shows them; `corner`: of the pane."""

    def __init__(self, view: LinesView, corner: Offset) -> None:
        self._view, self._corner = view, corner
        self._own_content = view.content
        self.content = view.content.translate(corner)

    @property
    def is_placed(self) -> bool:
        """Whether the lines are still there."""
        return self._view.content is self._own_content

    def parts(self, regions: Iterable[Region], filters: Sequence[LineFilter]) -> Iterator[Part]:
        """Yield the rows of regions of the pane."""
        right, down = self._corner
        scrolled = self._view.scroll_offset.y
        left, top = self._own_content.offset
        for x, y, width, height in regions:
            for row in range(y, y + height):
                cells = self._view.cells(row - top + scrolled, x - left, x - left + width)
                for line_filter in filters:
                    cells = line_filter.apply(list(cells), self._view.background_colors[1])
                yield row + down, x + right, (cells,)


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
