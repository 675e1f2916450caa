"""The widget that shows `Line`s and repaints only the cells that changed.

Textual's own widgets repaint themselves whole: ten times the bytes over SSH at one reading a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.color import Color
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from widgets.base.lines import TONE_STYLES, LazyLines, Line, Tone, cut, has_plain_width, width_of

if TYPE_CHECKING:
    from typing_extensions import Self


@runtime_checkable
class CellCompositor(Protocol):
    """A compositor that draws marked cells itself (tui/terminal/partial_compositor.py)."""

    def mark(self, view: LinesView, regions: Sequence[Region]) -> None:
        """Have these regions of a pane drawn once the current message has been processed."""


class LinesView(ScrollView, can_focus=True, inherit_bindings=False):
    """A pane of toned lines that scrolls up and down; a line that is too wide ends in `…`.

    It has no keys: the screen decides what they move in the focused pane.
    """

    DEFAULT_CSS = """
    LinesView {
        overflow-x: hidden;
    }
    """

    def __init__(
        self,
        title: str = "",
        *,
        id: str | None = None,  # noqa: A002 - Textual's word
        picks_rows: bool = True,
    ) -> None:
        """`picks_rows`: a click beside the runs with an id picks that of the row, as in a list."""
        super().__init__(id=id)
        self._picks_rows = picks_rows
        self.border_title = self._title = title
        self._lines: Sequence[Line] = []
        self._source: Sequence[Line] = ()  # the lines as they were given, and for which width
        self._source_width = -1
        # The painted rows, and their strips as far as Textual has asked for them since they changed.
        self._strips: dict[int, Strip | None] = {}
        self._styles_of: dict[Tone, Style] = {}
        self._drawn_for = 0
        self._content: tuple[object, Region] | None = None  # with what it depends on

    @property
    def lines(self) -> Sequence[Line]:
        """The lines that are shown."""
        return self._lines

    def set_title(self, title: str) -> None:
        """Set the title; a new `border_title` repaints the whole pane, even if it is the same."""
        if title != self._title:
            self.border_title = self._title = title

    def show(self, lines: Sequence[Line]) -> None:
        """Show other lines; only the changed part of a changed line is repainted."""
        width = self.room
        source, is_same_width = self._source, width == self._source_width
        if lines is source and is_same_width:
            return
        self._source, self._source_width = lines, width
        before = self._lines
        if isinstance(lines, LazyLines):
            lines = lines.mapped(lambda line: _within(line, width))
        elif is_same_width and len(source) == len(before) == len(lines) and isinstance(source, list):
            # Most lines have not changed, and fit already.
            drawn = zip(source, before, lines, strict=True)
            lines = [fitted if new == old else _within(new, width) for old, fitted, new in drawn]
        else:
            lines = [_within(line, width) for line in lines]
        self._lines = lines
        if self._set_size(Size(width, len(lines))):
            self._mark_rest()
            self._fit_scrollbar()
        if len(before) != len(lines):
            self._strips.clear()
            self.refresh()
            if self.styles.auto_dimensions:
                self.refresh(layout=True)
            return
        regions = []
        rows = self.visible_rows
        visible = range(*rows.indices(len(lines)))
        shown = [*map(self._shown_in, visible[:1]), *visible[1:]]  # only the first can be under a head
        if len(visible) < len(lines):
            self._strips = {row: self._strips[row] for row in shown if row in self._strips}
        for place, row in enumerate(shown):
            old, new = before[row], lines[row]
            if old is new or old == new:
                continue
            if row not in self._strips:  # the terminal shows it in an old style
                regions.append(Region(0, place, width, 1))
                continue
            self._strips[row] = None
            start, end = changed_cells(old, new)
            if start < end:
                regions.append(Region(start, place, end - start, 1))
        if regions:
            self.refresh(*regions)

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        """Have these regions of the content, or with none the whole pane, drawn again.

        Textual sends three messages for it, which cost more than drawing the cells.
        """
        is_plain = regions and repaint and not layout and not recompose
        if not (is_plain and self.is_running and self.display) or self._cell_compositor is None:
            return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)
        content = self.content
        # A line that was drawn for a wider pane had cells outside of this one.
        placed = (region.translate(content.offset).intersection(content) for region in regions)
        self._cell_compositor.mark(self, [region for region in placed if region])
        return self

    @cached_property
    def _cell_compositor(self) -> CellCompositor | None:
        """The compositor of the screen, if it draws marked cells itself."""
        compositor = getattr(self.screen, "_compositor", None)  # a private name of Textual
        return compositor if isinstance(compositor, CellCompositor) else None

    def _set_size(self, size: Size) -> bool:
        """Set the size of all lines; return whether it is new.

        Textual lays out and repaints the whole screen for it. That is needed only if the pane itself or its
        scroll bar changes.
        """
        old = self.virtual_size
        if size == old:
            return False
        has_bar = size.height > self.container_size.height
        is_growing = size.width == old.width and size.height > old.height
        if is_growing and has_bar == self.show_vertical_scrollbar and not self.styles.auto_dimensions:
            self.set_reactive(LinesView.virtual_size, size)
            self._scroll_update(size)
        else:
            self.virtual_size = size
        return True

    def append(self, lines: Sequence[Line]) -> None:
        """Show more lines below; scroll down if the last line was visible."""
        if not lines:
            return
        at_end = self.scroll_offset.y >= self.max_scroll_y
        width = self.room
        if not isinstance(self._lines, list):
            self._lines = list(self._lines)
        self._lines.extend(_within(line, width) for line in lines)
        self._set_size(Size(width, len(self._lines)))
        self.refresh()
        self._mark_rest()
        if at_end:
            self.scroll_end(animate=False)

    def scroll_to_row(self, row: int) -> None:
        """Scroll as little as needed to make a row visible."""
        top, height = self.scroll_offset.y, self.size.height
        heads = int(self._head_above(row) is not None)  # in the first row, over what scrolls below it
        if row < top + heads:
            self.scroll_to(y=max(0, row - heads), animate=False)
        elif row >= top + height:
            self.scroll_to(y=row - height + 1, animate=False)

    def rows_moved(self, how: str) -> int:
        """Return by how many rows a key moves the selection in a list: "up", "down", "page_up", …."""
        page, end = max(1, self.size.height - 1), 1 << 20
        steps = {"up": -1, "down": 1, "page_up": -page, "page_down": page, "first": -end, "last": end}
        return steps[how]

    def _head_above(self, row: int) -> int | None:
        return self._lines.head_above(row) if isinstance(self._lines, LazyLines) else None

    def _shown_in(self, row: int) -> int:
        """Return the line that is shown in a row: in the first one that is seen, the head of its table."""
        head = self._head_above(row) if row == self.scroll_offset.y else None
        return row if head is None else head

    def render_line(self, y: int) -> Strip:
        """Return the strip of a visible line."""
        row = self._shown_in(self.scroll_offset.y + y)
        width = self.room
        base = self._style(Tone.PLAIN)
        if row >= len(self._lines):
            return Strip.blank(width, base)
        strip = self._strips.get(row)
        if strip is None:
            line = self._lines[row]
            segments = [Segment(text, self._style(tone)) for text, tone, _ in line if text]
            strip = self._strips[row] = Strip(segments, width_of(line))
        return strip.adjust_cell_length(width, base)

    def cells(self, row: int, left: int, right: int) -> Iterable[Segment]:
        """Return the cells of a row from one column to another.

        They are a part of what `render_line` returns, without its strips: making one costs more than writing
        the cells.
        """
        screen_row = row - self.scroll_offset.y
        row = self._shown_in(row)
        if row < len(self._lines):
            self._strips.setdefault(row)
        segments: list[Segment] = []
        end = 0
        for text, tone, _ in self._lines[row] if row < len(self._lines) else ():
            if not has_plain_width(text):
                return self.render_line(screen_row).crop(left, right)
            start, end = end, end + len(text)
            if end > left:
                segments.append(Segment(text[max(0, left - start) : right - start], self._style(tone)))
            if end >= right:
                return segments
        segments.append(Segment(" " * (right - max(left, end)), self._style(Tone.PLAIN)))
        return segments

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Show how many lines are below."""
        super().watch_scroll_y(old_value, new_value)
        self._mark_rest()

    class Resized(Message):
        """The width of the pane has changed: its content must be drawn again."""

    @dataclass
    class Picked(Message):
        """A run or row with an id was clicked."""

        view: LinesView
        id: str

    @dataclass
    class TitlePicked(Message):
        """The title of the pane was clicked."""

        view: LinesView

    def on_click(self, event: events.Click) -> None:
        """Report a click: on the title, or on what is drawn under the mouse."""
        offset = event.get_content_offset(self)
        if offset is None and event.y == 0:
            self.post_message(self.TitlePicked(self))
        picked = "" if offset is None else self.id_at(offset.x, offset.y)
        if picked:
            self.post_message(self.Picked(self, picked))

    def id_at(self, x: int, y: int) -> str:
        """Return the id of what is drawn in a visible cell of the content, "" for none.

        It is that of the run there; in a list, else that of the row.
        """
        row = self._shown_in(y + self.scroll_offset.y)
        line = self._lines[row] if 0 <= row < len(self._lines) else ()
        end = 0
        for run in line:
            end += cell_len(run.text)
            if x < end:
                if run.id:
                    return run.id
                break
        return next((run.id for run in line if run.id), "") if self._picks_rows else ""

    @property
    def content(self) -> Region:
        """The cells of the lines, seen from the corner of the pane: without border and scroll bar."""
        state = self.outer_size, self.show_vertical_scrollbar
        if self._content is None or self._content[0] != state:  # Textual computes it from many styles
            content = Region.from_offset(self.content_offset, self.scrollable_content_region.size)
            if not content.size:  # hidden: its size is the old one, and it may get the same place again
                return content
            self._content = state, content
        return self._content[1]

    @property
    def room(self) -> int:
        """The width for lines in cells."""
        return self.content.width

    @property
    def visible_rows(self) -> slice:
        """The rows that are seen."""
        top = max(0, self.scroll_offset.y)
        return slice(top, top + self.content.height)

    def on_resize(self) -> None:
        """Ask for new lines if the width has changed."""
        self._mark_rest()
        self._fit_scrollbar()
        self._ask_for_drawing()

    def on_show(self) -> None:
        """Ask for new lines: a hidden pane is not drawn, so its lines may be old."""
        self._drawn_for = 0
        self._ask_for_drawing()

    def _fit_scrollbar(self) -> None:
        """Hide the scroll bar if all lines fit: Textual keeps it when lines and pane grow together."""
        if self.styles.overflow_y == "auto" and self.virtual_size.height <= self.container_size.height:
            self.show_vertical_scrollbar = False

    def watch_show_vertical_scrollbar(self) -> None:
        """Ask for new lines: the scroll bar takes a column."""
        self.call_after_refresh(self._ask_for_drawing)

    def _ask_for_drawing(self) -> None:
        if self.room != self._drawn_for:
            self._drawn_for = self.room
            self.post_message(self.Resized())

    def notify_style_update(self) -> None:
        """Forget the styles of the old theme."""
        super().notify_style_update()
        self._content = None
        self._styles_of.clear()
        self._strips.clear()

    def _mark_rest(self) -> None:
        """Show in the lower border how many lines are below."""
        below = len(self._lines) - round(self.scroll_target_y) - self.size.height
        mark = f"↓ {below} more" if below > 0 and self.size.height else ""
        if self.border_subtitle != mark:
            self.border_subtitle = mark

    def _style(self, tone: Tone) -> Style:
        # Textual computes the style of a pane from all its parents: once, not for every line of every second.
        # With component classes, each change of focus or size would have it style ten nodes a pane.
        style = self._styles_of.get(tone)
        if style is None:
            color, attributes = TONE_STYLES[tone]
            style = (
                self.rich_style if tone is Tone.PLAIN else self._style(Tone.PLAIN) + Style.parse(attributes)
            )
            if color:
                style += Style(color=Color.parse(self.app.theme_variables[color]).rich_color)
            self._styles_of[tone] = style
        return style


def _within(line: Line, width: int) -> Line:
    """Return the line, cut if it is wider than the pane; 0: the pane has no width yet."""
    return cut(line, width) if width else line


def changed_cells(old: Line, new: Line) -> tuple[int, int]:
    """Return the range of cells in which two lines differ, or a little more."""
    first, most = 0, min(len(old), len(new))
    while first < most and old[first] == new[first]:
        first += 1
    last = 0
    while last < most - first and old[-1 - last] == new[-1 - last]:
        last += 1
    before, after = old[first : len(old) - last], new[first : len(new) - last]
    start, width = width_of(old[:first]), width_of(before)
    if width != width_of(after):  # what follows has moved
        return start, max(width_of(old), width_of(new))
    if len(before) == len(after) == 1:
        (left, tone, _), (right, new_tone, _) = before[0], after[0]
        if tone is new_tone and left.isascii() and right.isascii():
            equal = _equal_characters(left, right)
            return start + equal, start + width - _equal_characters(left[equal:][::-1], right[equal:][::-1])
    return start, start + width


def _equal_characters(left: str, right: str) -> int:
    """Return how many characters at the beginning are equal; by halves, because comparing strings is fast."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
