"""Lines of toned text: what every view draws, before any terminal or library is chosen.

The drawings of the topology, the matrix and the ladder are pure functions to `Line`s, used by the
dashboard and by the text commands alike, so this must not import Textual.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from probes.base.text import printable


class Tone(Enum):
    """What a run of text means; the screen chooses the color, and meaning never depends on it."""

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


class Run(NamedTuple):
    """A piece of text of one tone; `id` names the endpoint it stands for, where it stands for one."""

    text: str
    tone: Tone = Tone.PLAIN
    id: str = ""


Line = tuple[Run, ...]


def line(*parts: Run | str) -> Line:
    """A line of runs; plain strings are plain runs."""
    return tuple(Run(part) if isinstance(part, str) else part for part in parts)


def rows_of(lines: Iterable[Line]) -> dict[str, int]:
    """Where each endpoint is drawn: its id and the first row that names it."""
    rows: dict[str, int] = {}
    for row, of in enumerate(lines):
        for run in of:
            if run.id:
                rows.setdefault(run.id, row)
    return rows


def plain(of: Line) -> str:
    """The text of a line, without tones, safe for any terminal."""
    return printable("".join(run.text for run in of)).rstrip()


def width_of(of: Line) -> int:
    """The cells that a line takes."""
    return sum(cell_len(run.text) for run in of)


def fit(of: Line, width: int) -> Line:
    """The line cut or padded to exactly `width` cells; what is cut ends in `…`."""
    have = width_of(of)
    if have == width:
        return of
    if have < width:
        return (*of, Run(" " * (width - have)))
    kept: list[Run] = []
    left = width - 1
    for run in of:
        cells = cell_len(run.text)
        if cells > left:
            kept.append(run._replace(text=set_cell_size(run.text, left) + "…"))
            return tuple(kept)
        kept.append(run)
        left -= cells
    return tuple(kept)


def at_most(lines: list[Line], count: int, width: int) -> list[Line]:
    """The first `count` lines; what is left out shows as `…` at the end of the last one."""
    if len(lines) <= count:
        return lines
    last = [part for more in lines[count - 1 :] for part in (*more, Run(" "))]
    return [*lines[: count - 1], fit(tuple(last), width)]


def joined(parts: Iterable[Line], gap: str = "  ") -> Line:
    """Lines one after another in one line, with a gap between."""
    runs: list[Run] = []
    for part in parts:
        if runs:
            runs.append(Run(gap))
        runs.extend(part)
    return tuple(runs)


def wrapped(text: str, width: int, tone: Tone = Tone.PLAIN, indent: str = "") -> list[Line]:
    """A sentence broken into lines of at most `width` cells, each begun with `indent`."""
    room = max(8, width - cell_len(indent))
    # An id or an option is never broken at its hyphens.
    pieces = textwrap.wrap(printable(text), room, break_on_hyphens=False) or [""]
    return [(Run(indent + piece, tone),) for piece in pieces]


def sentence(words: str) -> str:
    """Words that begin small, as a sentence of their own."""
    return f"{words[:1].upper()}{words[1:]}."


def folded(of: Line, width: int) -> list[Line]:
    """The line broken at `width` cells, wherever that is, so that nothing of it is lost."""
    if width_of(of) <= width:
        return [of]
    lines: list[Line] = []
    runs: list[Run] = []
    left = width
    for run in of:
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
    """The longest beginning of at most so many cells, and the rest."""
    if text.isascii():
        return text[:cells], text[cells:]
    taken = 0
    for place, character in enumerate(text):
        taken += cell_len(character)
        if taken > cells:
            return text[:place], text[place:]
    return text, ""
