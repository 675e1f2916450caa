"""Write only the cells that changed, in few bytes, where Textual would write panes from their left edge.

Textual's ChopsUpdate crops a changed span on its right only (textual#5625), and writes a full SGR sequence
before each run of a style and a reset behind it. On an overview of which every figure changes once a second,
that is 770 cells and 3 KB a second, of which 90 cells change.

MinimalOutput stands between Textual's compositor and its driver, only in the versions of Textual that it was
tested with. If it raises, Textual's own output is used from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from rich.color import ColorSystem
from rich.segment import Segment
from textual.strip import Strip

from tui.terminal.cells import PLAIN, Pen, agreed_width, cells_of, change_pen, parse_pen
from tui.terminal.driver import TerminalDriver
from tui.terminal.partial_compositor import Part, PartsUpdate
from tui.terminal.textual_version import is_tested

if TYPE_CHECKING or is_tested():
    from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
else:  # another version may not have them, and then nothing here uses them
    ChopsUpdate = CompositorUpdate = LayoutUpdate = object

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.style import Style
    from textual.app import App
    from textual.screen import Screen

_MOST_STYLES = 1024
# A longer gap of unchanged cells is never cheaper to write than to skip.
_LONGEST_GAP = 4

Update = LayoutUpdate | ChopsUpdate | PartsUpdate


class TerminalContent:
    """The cells of the terminal as they were last written."""

    def __init__(self) -> None:
        self._size = (0, 0)
        self._texts: list[list[str | None]] = []  # None: unknown
        self._pens: list[list[Pen]] = []
        self._disputed: dict[int, int] = {}  # by row: the first cell whose width terminals may disagree about
        self._pen_of: dict[Style | None, Pen] = {}
        self._known_pens: dict[object, Pen] = {}
        self._changes: dict[tuple[Pen, Pen], str] = {}
        self._is_reset = False
        self._pen = PLAIN
        self._row, self._column = 0, -1  # of the cursor; -1: unknown

    def forget(self) -> None:
        """Take the terminal for changed by others: whatever is drawn from now on is written."""
        self._size = (0, 0)
        self._is_reset = False

    def draw(self, size: tuple[int, int], parts: Iterable[Part], colors: ColorSystem) -> str:
        """Return what to write so that the terminal shows these parts; `size` is in columns and rows."""
        columns, rows = size
        if size != self._size:
            self._size = size
            self._texts = [[None] * columns for _ in range(rows)]
            self._pens = [[PLAIN] * columns for _ in range(rows)]
            self._disputed.clear()
        if max(len(self._pen_of), len(self._changes)) > _MOST_STYLES:
            for memory in (self._pen_of, self._known_pens, self._changes):
                memory.clear()
        written = [] if self._is_reset else ["\x1b[m"]
        self._is_reset, self._pen, self._column = True, PLAIN, -1
        for row, parts_of_row in groupby(parts, itemgetter(0)):
            if not 0 <= row < rows:
                continue
            changed: list[int] = []
            has_disputed = row in self._disputed
            for _, column, strips in parts_of_row:
                has_disputed |= self._put(row, column, strips, colors, changed)
            if changed and has_disputed:
                changed = self._with_displaced(row, changed)
            if changed:
                self._write(row, changed, written)
        self._take(PLAIN, written)
        return "".join(written)

    def _put(
        self,
        row: int,
        column: int,
        strips: Iterable[Iterable[Segment]],
        colors: ColorSystem,
        changed: list[int],
    ) -> bool:
        """Set cells, append the columns of changed ones, and return whether the width of one is disputed."""
        texts: list[str | None] = []
        pens: list[Pen] = []
        has_disputed = False
        for strip in strips:
            for text, style, control in strip:
                if control:  # has no cells
                    continue
                pen = self._pen_of.get(style) or self._pen_for(style, colors)
                cells, is_disputed = cells_of(text)
                texts += cells
                pens += [pen] * len(cells)
                has_disputed |= is_disputed
        room = max(self._size[0] - column, 0)
        del texts[room:], pens[room:]
        end = column + len(texts)
        old_texts, old_pens = self._texts[row][column:end], self._pens[row][column:end]
        if old_pens == pens:  # only texts have changed, as figures do
            pairs = zip(range(column, end), texts, old_texts, strict=True)
            changed += [place for place, new, old in pairs if new != old]
        else:
            both = zip(range(column, end), texts, old_texts, pens, old_pens, strict=True)
            changed += [place for place, new, old, pen, old_pen in both if new != old or pen is not old_pen]
        self._texts[row][column:end], self._pens[row][column:end] = texts, pens
        return has_disputed

    def _with_displaced(self, row: int, changed: list[int]) -> list[int]:
        """Add what may be displaced by a cell whose width is disputed: the rest of the row."""
        places = enumerate(self._texts[row])
        first = next((place for place, text in places if text and not agreed_width(text)), -1)
        begin = min(place for place in (changed[0], self._disputed.pop(row, -1), first) if place >= 0)
        if first >= 0:
            self._disputed[row] = first
        return list(range(begin, self._size[0]))

    def _write(self, row: int, changed: list[int], written: list[str]) -> None:
        """Append what writes these cells of a row."""
        texts, pens = self._texts[row], self._pens[row]
        for column in changed:
            text = texts[column]
            if not text:  # unknown, or covered by a wide one before it
                continue
            if column != self._column or row != self._row:
                self._move(row, column, written)
            if pens[column] is not self._pen:
                self._take(pens[column], written)
            width = 1 if text.isascii() else agreed_width(text)
            if width:
                written.append(text)
                self._column = column + width
            else:
                self._write_disputed(row, column, text, written)
            if self._column >= self._size[0]:  # terminals differ in where the cursor is then
                self._column = -1

    def _write_disputed(self, row: int, column: int, text: str, written: list[str]) -> None:
        """Append a text that may be wider or narrower on the terminal, on a cleared place."""
        end = column + 1
        while end < self._size[0] and self._texts[row][end] == "":
            end += 1
        written += (" " * (end - column), _cursor_to(row, column), text)
        self._column = -1

    def _move(self, row: int, column: int, written: list[str]) -> None:
        """Append what moves the cursor: the shortest of the sequences that every terminal has."""
        right = column - self._column
        is_before = row < self._row or (row == self._row and right < 0)
        if self._column < 0 or is_before or (row > self._row and right > 0):
            sequence = _cursor_to(row, column)
        elif row > self._row:
            down = row - self._row
            relative = (f"\x1b[{down}B" if down > 1 else "\x1b[B") + "\b" * -right
            sequence = min(_cursor_to(row, column), relative, key=len)
        else:
            sequence = f"\x1b[{right}C" if right > 1 else "\x1b[C"
            gap = slice(self._column, column)
            if right <= _LONGEST_GAP and self._pens[row][gap].count(self._pen) == right:
                between = "".join([text or "" for text in self._texts[row][gap]])
                if len(between) == right and between.isascii():
                    sequence = between
        written.append(sequence)
        self._row, self._column = row, column

    def _take(self, pen: Pen, written: list[str]) -> None:
        """Append what changes the pen."""
        key = self._pen, pen
        if pen is not self._pen:
            if key not in self._changes:
                self._changes[key] = change_pen(*key)
            written.append(self._changes[key])
            self._pen = pen

    def _pen_for(self, style: Style | None, colors: ColorSystem) -> Pen:
        """Return the pen of a style; equal ones are the same object."""
        if style is None:
            codes, link, link_id = "", "", ""
        else:
            ansi: str | None = style._ansi
            codes = Strip.render_ansi(style, colors) if ansi is None else ansi
            link, link_id = style._link or "", style._link_id if style._link else ""
        pen = parse_pen(codes, link, link_id)
        pen = self._known_pens.setdefault((pen.attributes, pen.foreground, pen.background, link), pen)
        self._pen_of[style] = pen
        return pen


def _cursor_to(row: int, column: int) -> str:
    return f"\x1b[{row + 1};{column + 1}H" if column else f"\x1b[{row + 1}H"


def _parts(update: Update) -> Iterator[Part]:
    """Yield what an update draws."""
    if isinstance(update, PartsUpdate):
        yield from update.parts
        return
    if isinstance(update, LayoutUpdate):
        for row, line in enumerate(update.strips, update.region.y):
            yield row, update.region.x, line
        return
    before = (-1, -1)
    for row, start, end in update.spans:
        for right, (left, strip) in zip(update.chop_ends[row], update.chops[row].items(), strict=False):
            # Spans of a row may share a strip. It is compared as a whole: what is equal costs no bytes.
            if strip is not None and left < end and start < right and (row, left) > before:
                before = row, left
                yield row, left, (strip,)


class _MinimalUpdate(CompositorUpdate):
    """An update of Textual's, written by MinimalOutput."""

    def __init__(self, output: MinimalOutput, update: Update, screen: Screen[object]) -> None:
        self._output, self._update, self._screen = output, update, screen

    def render_segments(self, console: Console) -> str:
        """Return what to write."""
        return self._output.render(self._update, self._screen, console)


class MinimalOutput:
    """Writes what Textual draws in few bytes; does nothing with a version of Textual that was not tested."""

    def __init__(self, app: App[Any]) -> None:
        self.is_used = is_tested()
        self._app = app
        self._content = TerminalContent()
        self._screen: object = None
        self._starts = 0

    def forget(self) -> None:
        """Expect anything on the terminal."""
        self._content.forget()

    def minimized(self, screen: Screen[object], drawn: RenderableType | None) -> RenderableType | None:
        """Return what to hand to Textual's output instead of an update of its compositor."""
        if self.is_used and isinstance(drawn, Update):
            return cast("RenderableType", _MinimalUpdate(self, drawn, screen))
        return drawn

    def render(self, update: Update, screen: Screen[object], console: Console) -> str:
        """Return what to write for an update of Textual's."""
        try:
            driver = self._app._driver
            if isinstance(driver, TerminalDriver) and driver.starts != self._starts:
                self._starts = driver.starts
                self._content.forget()
            if screen is not self._screen:  # so that another screen also repairs what others wrote
                self._screen = screen
                self._content.forget()
            colors = console._color_system or ColorSystem.TRUECOLOR
            return self._content.draw(screen.outer_size, _parts(update), colors)
        except Exception:  # whatever it is, Textual's own output works
            self.is_used = False
            return update.render_segments(console)
