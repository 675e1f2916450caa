"""Write only the cells that changed, in few bytes, where Textual would write panes from their left edge.

Textual's ChopsUpdate crops a changed span on its right only (textual#5625), and writes a full SGR sequence
before each run of a style and a reset behind it. On an overview of which every figure changes once a second,
that is 770 cells and 3 KB a second, of which 90 cells change.

MinimalOutput stands between Textual's compositor and its driver, only in the versions of Textual that it was
tested with. If it raises, Textual's own output is used from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.segment import Segment
from textual.strip import Strip

from tui.terminal.driver import TerminalDriver
from tui.terminal.partial_compositor import Part, PartsUpdate
from tui.terminal.textual_version import is_tested

# What one cell of a terminal shows: its text and its pen, and the shortest way from one pen to another.

# Characters whose width all terminals agree on: Latin to Armenian without combining marks, punctuation,
# arrows, box drawing, blocks, symbols and Braille; CJK and Hangul syllables. Emoji are not among them: old
# terminals draw them narrow, and sequences of them as several characters.
_NARROW = (
    *((0x20, 0x7E), (0xA0, 0xAC), (0xAE, 0x2FF), (0x370, 0x482), (0x48A, 0x58F), (0x1E00, 0x1FFF)),
    *((0x2010, 0x2027), (0x2030, 0x205E), (0x2070, 0x20CF), (0x2100, 0x2BFF)),
)
_WIDE = (
    *((0x3001, 0x3029), (0x3041, 0x3096), (0x30A1, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF)),
    *((0xAC00, 0xD7A3), (0xFF01, 0xFF60)),
)
_JOINER = "\u200d"
# Controls, with which a text would act on the terminal, and marks that reorder what stands around them. Texts
# are cleaned where they are read (probes.base.text); this is the last door before the terminal.
_NEVER_WRITTEN = dict.fromkeys(
    (*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
)

# The code that turns an attribute off; 22 ends bold and dim.
_OFF = {"1": "22", "2": "22", "3": "23", "4": "24", "5": "25", "6": "25", "7": "27", "8": "28", "9": "29"}
_OFF |= {"21": "24", "53": "55"}
# Characters of one cell that were seen already, of the few thousand in _NARROW: each once, for Python makes a
# new object for every "─" of a text.
_one_cell = {chr(code): chr(code) for code in range(*_NARROW[0])}


@lru_cache(4096)
def agreed_width(text: str) -> int:
    """Return the width of a character in cells, or 0 for one (or several) where terminals may differ."""
    if len(text) != 1:
        return 0
    code, width = ord(text), cell_len(text)
    ranges = {1: _NARROW, 2: _WIDE}.get(width, ())
    return width if any(first <= code <= last for first, last in ranges) else 0


@lru_cache(1024)
def cells_of(text: str) -> tuple[tuple[str, ...], bool]:
    """Split a text into cells; return also whether terminals may disagree about the width of some.

    A cell has a character, or a run of characters of which only the whole has a width. Cells that it covers
    besides its first one are empty. Controls are left out, and marks without a character before them.
    """
    try:  # as fast as it can be: each figure that has changed comes here
        return tuple(map(_one_cell.__getitem__, text)), False
    except KeyError:
        pass
    cells: list[str] = []
    place, is_disputed = 0, False
    while place < len(text):
        start, width = place, agreed_width(text[place])
        place += 1
        if not width or (place < len(text) and not cell_len(text[place])):
            while place < len(text) and (not agreed_width(text[place]) or text[place - 1] == _JOINER):
                place += 1
            width, is_disputed = cell_len(text[start:place]), True
        if width:
            cells += [text[start:place].translate(_NEVER_WRITTEN), *[""] * (width - 1)]
    width = cell_len(text)
    if len(cells) == width:
        if not is_disputed and len(text) == width:
            _one_cell.update(zip(text, text, strict=True))
        return tuple(cells), is_disputed
    return (text.translate(_NEVER_WRITTEN), *[""] * (width - 1))[:width], True


@dataclass(frozen=True, eq=False)
class Pen:
    """How characters are drawn: attributes and colors as SGR codes, and a hyperlink with its id.

    Equal pens are the same object (Pens).
    """

    attributes: frozenset[str] = frozenset()
    foreground: str = ""
    background: str = ""
    link: str = ""
    link_id: str = ""

    @property
    def codes(self) -> list[str]:
        """The SGR codes after a reset."""
        return [*sorted(self.attributes), *filter(None, (self.foreground, self.background))]


PLAIN = Pen()


def parse_pen(codes: str, link: str = "", link_id: str = "") -> Pen:
    """Return the pen of SGR codes that follow a reset, as Rich and Textual write them."""
    attributes, foreground, background = set(), "", ""
    numbers = codes.split(";") if codes else []
    while numbers:
        taken = {"5": 3, "2": 5}.get(numbers[1], 1) if numbers[0] in ("38", "48") and len(numbers) > 1 else 1
        code, first = ";".join(numbers[:taken]), int(numbers[0])
        del numbers[:taken]
        if first == 39:
            foreground = ""
        elif first == 49:
            background = ""
        elif 30 <= first <= 38 or 90 <= first <= 97:
            foreground = code
        elif 40 <= first <= 48 or 100 <= first <= 107:
            background = code
        else:
            attributes.add(code)
    return Pen(frozenset(attributes), foreground, background, link, link_id)


def change_pen(old: Pen, new: Pen) -> str:
    """Return the shortest control sequences that change the pen."""
    sequences = ""
    if old.link != new.link:
        sequences = f"\x1b]8;id={new.link_id};{new.link}\x1b\\" if new.link else "\x1b]8;;\x1b\\"
    if (old.attributes, old.foreground, old.background) == (new.attributes, new.foreground, new.background):
        return sequences
    absolute = f"\x1b[{';'.join(['0', *new.codes])}m" if new.codes else "\x1b[m"
    removed = old.attributes - new.attributes
    if not removed <= _OFF.keys():
        return sequences + absolute
    off = {_OFF[code] for code in removed}
    # A code that ends one of two attributes ends both.
    on = {code for code in new.attributes if code not in old.attributes or _OFF.get(code) in off}
    codes = [*sorted(off), *sorted(on)]
    if old.foreground != new.foreground:
        codes.append(new.foreground or "39")
    if old.background != new.background:
        codes.append(new.background or "49")
    return sequences + min(f"\x1b[{';'.join(codes)}m", absolute, key=len)


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
