"""The console of a series: what its processes print. Bounded; the newest lines are kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from widgets.base.lines import Line, Run, Tone, folded

MOST_LINES = 2000


class _Entry(NamedTuple):
    text: str
    process: str
    tone: Tone


class Console:
    """Lines, each with the name of the process that printed it; gdrtop's own lines have no name."""

    def __init__(self, processes: Iterable[str]) -> None:
        self._width = max(map(len, processes), default=0)
        self._entries: deque[_Entry] = deque(maxlen=MOST_LINES)
        self._unshown = 0
        self.count = 0  # of all lines so far, including dropped ones

    def write(self, text: str, process: str = "", tone: Tone = Tone.PLAIN) -> None:
        """Add a line of a process, or of gdrtop."""
        self._entries.append(_Entry(text, process, tone))
        self.count += 1

    def note_unshown(self, lines: int) -> None:
        """Add a warning if more lines were skipped; `lines` counts all of them since the start."""
        if lines > self._unshown:
            self.write(f"▲ {lines - self._unshown} lines skipped: output too fast", tone=Tone.WARNING)
            self._unshown = lines

    def lines(self, width: int, first: int = 0) -> list[Line]:
        """Return the lines from number `first` on, each behind the name of its process."""
        dropped = self.count - len(self._entries)
        lines: list[Line] = []
        if first == 0 and dropped:
            lines.append((Run(f"{dropped} earlier lines were dropped.", Tone.DIM),))
        for entry in list(self._entries)[max(0, first - dropped) :]:
            prefix = f"{entry.process:<{self._width}} │ " if entry.process else ""
            pieces = folded((Run(entry.text, entry.tone),), max(8, width - len(prefix)))
            lines.extend((Run(prefix, Tone.DIM), *piece) for piece in pieces or [()])
        return lines
