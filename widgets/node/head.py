"""The head of every screen: one sentence about the node, and below it host, screen, verdict and clock."""

from __future__ import annotations

from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from widgets.base.lines import Line, Run, Tone, cut, fit, width_of

HEAD_ROWS = 2
# Of a long name, before the verdict gives up its counts of GPUs and NICs, and that of its findings.
_LEAST_HOST_CELLS, _SHORT_HOST_CELLS = 28, 12
_ROOM_FOR_DATE = 100
_FORMS_WITH_DEVICES = 3  # the first forms of a verdict (widgets/node/verdict.py)
_FEWEST_HOST_CELLS = 5


class Head(NamedTuple):
    """The parts of the head; none is dropped, but the verdict becomes shorter, and then the host's name."""

    sentence: Line
    host: str = ""  # or which recording, tree or simulated node; "" while it is unknown
    source: str = ""  # "SIMULATED"; "" for this live node
    verdicts: tuple[Line, ...] = ()  # from all counts down to the word
    status: Line = ()  # what is running or being recorded, or that the node does not answer
    clock: str = ""
    date: str = ""  # of a recording, where there is room
    hint: str = ""  # which key to press next


def draw(head: Head, screen: str, width: int) -> list[Line]:
    """Draw two rows: the sentence with its hint where that fits, then where and when it is true."""
    first: Line = (Run(" "), *head.sentence)
    for text in (head.hint, " ".join(head.hint.split()[:2])):  # "press s for guided setup", "press s"
        hint = Run(f" · {text}", Tone.DIM)
        if text and width_of((*first, hint)) <= width:
            first = (*first, hint)
            break
    title = Run(f"{screen}  ", Tone.TITLE)
    clock = " ".join(filter(None, (head.date if width >= _ROOM_FOR_DATE else "", head.clock)))
    right: Line = (*head.status, Run(f"  {clock} " if clock else "", Tone.DIM))
    room = width - width_of((title,)) - width_of(right) - 3
    room -= len(head.source) + 1 if head.source else 0
    verdict: Line = ()
    for number, verdict in enumerate(head.verdicts):
        least = _LEAST_HOST_CELLS if number < _FORMS_WITH_DEVICES else _SHORT_HOST_CELLS
        if room - width_of(verdict) >= min(cell_len(head.host), least):
            break
    host = shortened(head.host, max(_FEWEST_HOST_CELLS, room - width_of(verdict)))
    place = f"{head.source} {host}".strip()
    second: Line = (Run(f" {place}  " if place else " "), title, *verdict)
    return [cut(first, width), (*fit(second, max(0, width - width_of(right))), *right)]


def shortened(name: str, cells: int) -> str:
    """Return a name of at most so many cells, cut in the middle: its end tells hosts apart."""
    if cell_len(name) <= cells:
        return name
    begin = set_cell_size(name, cells // 2).rstrip()
    end = name
    while cell_len(end) > cells - cell_len(begin) - 1:
        end = end[1:]
    return f"{begin}…{end}"
