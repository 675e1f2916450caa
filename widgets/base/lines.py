"""Lines of toned text: what every view draws, for the dashboard and for text commands.

Views are pure functions that return `Line`s. Text commands use them too, so this must not import Textual.
"""

from __future__ import annotations

import re
import textwrap
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple, overload

from rich.cells import cell_len, set_cell_size

from probes.base.text import capitalized, printable

_LONGEST_CUT_WORD = 12  # cells
LABEL_CELLS = 12


class Tone(Enum):
    """What a run of text means; the meaning never depends on the color (TONE_STYLES)."""

    PLAIN = "plain"
    DIM = "dim"
    TITLE = "title"
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"
    GPU = "gpu"
    NIC = "nic"
    LIT = "lit"  # on the selected path
    CURSOR = "cursor"  # selected
    LOW_LOAD = "low load"  # of graphs: below a third, …
    LOAD = "load"
    HIGH_LOAD = "high load"  # … above two thirds

    # Enum's own is a function in Python, and each run on the screen looks up the style of its tone.
    __hash__ = object.__hash__


# Color of Textual's theme and attributes of each tone on the screen (lines_view.py).
TONE_STYLES: dict[Tone, tuple[str, str]] = {
    Tone.PLAIN: ("", ""),
    Tone.DIM: ("", "dim"),
    Tone.TITLE: ("", "bold"),
    Tone.GOOD: ("success", ""),
    Tone.WARNING: ("warning", ""),
    Tone.BAD: ("error", "bold"),
    Tone.GPU: ("success", "bold"),
    Tone.NIC: ("secondary", "bold"),
    Tone.LIT: ("", "bold underline"),
    Tone.CURSOR: ("", "reverse"),
    Tone.LOW_LOAD: ("primary", ""),
    Tone.LOAD: ("secondary", ""),
    Tone.HIGH_LOAD: ("accent", ""),
}


class Run(NamedTuple):
    """A piece of text of one tone; `id`: the GPU, NIC or row that it represents, for mouse and keys."""

    text: str
    tone: Tone = Tone.PLAIN
    id: str = ""


_EDGE = " │"  # before each line of a file
# Characters of one cell: those of ASCII, and what gdrtop draws with.
_DRAWN = re.compile(r"[ -~←-↓─-▟·…●✓✗▲°]*")


class Piece(Run):
    """A piece of a text that was wrapped; the first one."""


class Rest(Piece):
    """A later piece, which followed a space."""


class Fragment(Piece):
    """A later piece that begins inside a word too long for the line."""


Line = tuple[Run, ...]


def line(*parts: Run | str) -> Line:
    """Return a line of runs; strings become plain runs."""
    return tuple(Run(part) if isinstance(part, str) else part for part in parts)


def rows_of(lines: Iterable[Line]) -> dict[str, int]:
    """Return the first row of each id."""
    rows: dict[str, int] = {}
    for row, runs in enumerate(lines):
        for run in runs:
            if run.id:
                rows.setdefault(run.id, row)
    return rows


def plain(line: Line) -> str:
    """Return the text of a line without tones, safe for any terminal."""
    return printable("".join(run.text for run in line)).rstrip()


def width_of(line: Line) -> int:
    """Return the width of a line in cells."""
    cells = 0
    for text, _, _ in line:
        cells += len(text) if has_plain_width(text) else _cells_of(text)
    return cells


def has_plain_width(text: str) -> bool:
    """Return whether each character is known to have one cell, without a search in tables of widths."""
    return (text.isascii() and text.isprintable()) or _DRAWN.fullmatch(text) is not None


@lru_cache(4096)
def _cells_of(text: str) -> int:
    return cell_len(text)


def cut(line: Line, width: int) -> Line:
    """Return at most `width` cells of a line; a cut line ends in `…`."""
    return fit(line, width) if width_of(line) > width else line


def fit(line: Line, width: int) -> Line:
    """Cut or pad a line to exactly `width` cells; the pad belongs to the last run.

    A cut line ends in `…` behind a whole word, unless that is long: half a figure would be another figure.
    """
    have = width_of(line)
    if have == width:
        return line
    if have < width:
        return (*line, Run(" " * (width - have), id=line[-1].id if line else ""))
    kept: list[Run] = []
    left = width - 1
    for run in line:
        cells = cell_len(run.text)
        if cells > left:
            kept.append(run._replace(text=_cut_text(run.text, left, bool(kept))))
            return tuple(kept)
        kept.append(run)
        left -= cells
    return tuple(kept)


def _cut_text(text: str, cells: int, follows: bool) -> str:
    """Return a text of `cells` and an ellipsis; `follows`: something stands before it."""
    shown = set_cell_size(text, cells)
    words, space, part = shown.rpartition(" ")
    is_within_word = bool(part) and not text[len(shown) : len(shown) + 1].isspace()
    if is_within_word and space and len(part) <= _LONGEST_CUT_WORD and (words.strip() or follows):
        shown = words.rstrip()
    return f"{shown}…{' ' * (cells - cell_len(shown))}"


def behind(head: Line, lines: Iterable[Line]) -> list[Line]:
    """Return lines behind a head, the others below it behind as many blank cells."""
    blank = (Run(" " * width_of(head)),)
    return [(*(blank if number else head), *line) for number, line in enumerate(lines)]


def labeled(label: str, texts: Iterable[str], width: int, tone: Tone = Tone.PLAIN) -> list[Line]:
    """Return a label and texts beside it, each on lines of its own."""
    pieces = paragraphs(texts, max(8, width - LABEL_CELLS), tone)
    return behind((Run(f"{label:<{LABEL_CELLS}}", Tone.TITLE if label else Tone.PLAIN),), pieces)


def as_text(lines: Iterable[Line]) -> str:
    """Return lines as plain text, each ended."""
    return "".join(f"{plain(line)}\n" for line in lines)


def at_most(lines: list[Line], count: int, width: int) -> list[Line]:
    """Return the first `count` lines; the last one ends in `…` if lines are left out."""
    if len(lines) <= count:
        return lines
    last = [part for more in lines[count - 1 :] for part in (*more, Run(" "))]
    return [*lines[: count - 1], fit(tuple(last), width)]


def joined(parts: Iterable[Line], gap: str = "  ") -> Line:
    """Join lines to one line, with a gap between them."""
    runs: list[Run] = []
    for part in parts:
        if runs:
            runs.append(Run(gap))
        runs.extend(part)
    return tuple(runs)


def flowed(parts: Iterable[Line], width: int, gap: str = "  ") -> list[Line]:
    """Put parts beside each other, in as few lines as hold them whole; one that is too wide is cut."""
    lines: list[Line] = []
    for part in parts:
        longer = (*lines[-1], Run(gap), *part) if lines else part
        if lines and width_of(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return [cut(line, width) for line in lines]


def wrapped(
    text: str, width: int, tone: Tone = Tone.PLAIN, indent: str = "", hanging: str = ""
) -> list[Line]:
    """Wrap a sentence into lines of at most `width` cells, each indented with `indent`.

    `hanging`: the further indent of all lines but the first.
    """
    whole = printable(text)
    # An id or an option is never broken at its hyphens.
    pieces = textwrap.wrap(
        whole,
        max(8, width - cell_len(indent)) + len(indent),
        initial_indent=indent,
        subsequent_indent=indent + hanging,
        break_on_hyphens=False,
    )
    lines: list[Line] = []
    end = 0
    for piece in pieces or [indent]:
        before = indent + hanging if lines else indent
        words = piece[len(before) :]
        kind = (Fragment if whole.startswith(words, end) else Rest) if lines else Piece
        end = max(0, whole.find(words, end)) + len(words)
        lines.append((Run(before, tone), kind(words, tone)) if before else (kind(words, tone),))
    return lines


def paragraphs(
    texts: Iterable[str], width: int, tone: Tone = Tone.PLAIN, indent: str = "", hanging: str = ""
) -> list[Line]:
    """Wrap texts below each other; there is no line for an empty one."""
    return [line for text in texts if text for line in wrapped(text, width, tone, indent, hanging)]


def listed(text: str, width: int, tone: Tone = Tone.PLAIN, hang: str = "  ") -> list[Line]:
    """Wrap an entry of a list; its second and further lines are indented further."""
    first, *rest = wrapped(text, width - len(hang), tone, indent="  ")
    return [first, *((Run(hang), *line) for line in rest)]


def labeled_below(label: str, text: str, width: int, cells: int) -> list[Line]:
    """Return a text behind its label, below an entry of a list; nothing for ""."""
    if not text:
        return []
    first, *rest = wrapped(text, width, indent=" " * (cells + 4))
    return [(Run(f"    {label:<{cells}}"), *first[1:]), *rest]


def section(title: str, lines: Sequence[Line]) -> list[Line]:
    """Return lines below a title and a blank line; nothing without lines."""
    return [(), (Run(title, Tone.TITLE),), *lines] if lines else []


def unwrapped(lines: Iterable[Line], only_words: bool = False) -> list[Line]:
    """Join the pieces of wrapped texts, for a pipe; with `only_words`, only those of words that were broken.

    A piece inside a box, or beside other text, stays as it is drawn.
    """
    whole: list[Line] = []
    for drawn in lines:
        before, start = _last_run(whole[-1]) if whole else (Run(""), ())
        piece, indent = _last_run(drawn)
        is_joined = isinstance(piece, Fragment) or (isinstance(piece, Rest) and not only_words)
        if is_joined and isinstance(before, Piece) and not plain(indent).strip(_EDGE):
            gap = "" if isinstance(piece, Fragment) else " "
            whole[-1] = (*start, before._replace(text=f"{before.text}{gap}{piece.text}"))
        else:
            whole.append(drawn)
    return whole


def _last_run(line: Line) -> tuple[Run, Line]:
    """Return the last run that is not blank, and the runs before it."""
    for place in range(len(line) - 1, -1, -1):
        if line[place].text.strip():
            return line[place], line[:place]
    return Run(""), ()


def sentence(words: str) -> str:
    """Return a phrase as a sentence: with a capital and a period."""
    return f"{capitalized(words)}."


def folded(line: Line, width: int) -> list[Line]:
    """Break a line at `width` cells, in the middle of words too, so that nothing is lost."""
    if width_of(line) <= width:
        return [line]
    lines: list[Line] = []
    runs: list[Run] = []
    left = width
    for run in line:
        text = run.text
        while cell_len(text) > left:
            head, tail = _split(text, left)
            if head:
                runs.append(run._replace(text=head))
            elif not runs:  # a wide character in a pane of one column
                head, tail = text[:1], text[1:]
                runs.append(run._replace(text=head))
            lines.append(tuple(runs))
            runs, left, text = [], width, tail
        if text:
            runs.append(run._replace(text=text))
            left -= cell_len(text)
    return [*lines, tuple(runs)] if runs else lines


def _split(text: str, cells: int) -> tuple[str, str]:
    """Split a text after at most so many cells."""
    if text.isascii():
        return text[:cells], text[cells:]
    width = 0
    for place, character in enumerate(text):
        width += cell_len(character)
        if width > cells:
            return text[:place], text[place:]
    return text, ""


class LazyLines(Sequence[Line]):
    """So many lines; `make` returns the line of a row, and each is made once.

    `heads`: the rows of the heads of tables, which stay on the screen while their table is scrolled.
    """

    def __init__(self, count: int, make: Callable[[int], Line], heads: range = range(0)) -> None:
        self._count, self._make, self._heads = count, make, heads
        self._made: dict[int, Line] = {}

    @classmethod
    def from_lines(cls, lines: Sequence[Line]) -> LazyLines:
        """Return lines that are there already."""
        return cls(len(lines), lines.__getitem__)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, row: int) -> Line: ...

    @overload
    def __getitem__(self, row: slice) -> list[Line]: ...

    def __getitem__(self, row: int | slice) -> Line | list[Line]:
        if isinstance(row, slice):
            return [self[number] for number in range(*row.indices(self._count))]
        number = row + self._count if row < 0 else row
        if not 0 <= number < self._count:
            raise IndexError(row)
        if number not in self._made:
            self._made[number] = self._make(number)
        return self._made[number]

    def head_above(self, row: int) -> int | None:
        """Return the row of the head of the table that a row is in; None for a head, and outside tables."""
        above = bisect_left(self._heads, row)
        return self._heads[above - 1] if above and row not in self._heads else None

    def followed_by(self, lines: Sequence[Line]) -> LazyLines:
        """Return these lines and others below."""
        return LazyLines(
            self._count + len(lines),
            lambda row: self[row] if row < self._count else lines[row - self._count],
            self._heads,
        )

    def mapped(self, change: Callable[[Line], Line]) -> LazyLines:
        """Return the changed lines."""
        return LazyLines(self._count, lambda row: change(self[row]), self._heads)
