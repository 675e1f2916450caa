"""What the ends of tests print, as a console: bounded, the newest lines are kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from widgets.base.lines import Line, Run, Tone, folded

MOST_LINES = 2000


@dataclass(frozen=True)
class _Told:
    """A line of the console."""

    text: str
    end: str = ""
    tone: Tone = Tone.PLAIN


class Console:
    """Lines, each with the name of the end that printed it, or gdrtop's own."""

    def __init__(self, ends: Iterable[str]) -> None:
        """`ends` are the names that will come."""
        self._width = max((len(end) for end in ends), default=0)
        self._lines: deque[_Told] = deque(maxlen=MOST_LINES)
        self._unshown = 0
        self.told = 0  # lines, ever

    def say(self, text: str, end: str = "", tone: Tone = Tone.PLAIN) -> None:
        """One line more; of `end`, or gdrtop's own."""
        self._lines.append(_Told(text, end, tone))
        self.told += 1

    def note_unshown(self, lines: int) -> None:
        """So many lines came faster than they could be shown, since the beginning."""
        if lines > self._unshown:
            self.say(f"▲ {lines - self._unshown} lines came too fast to be shown", tone=Tone.WARNING)
            self._unshown = lines

    def lines(self, width: int, first: int = 0) -> list[Line]:
        """Each line behind the name of its end; from line `first` on."""
        dropped = self.told - len(self._lines)
        lines: list[Line] = []
        if first == 0 and dropped:
            lines.append((Run(f"{dropped} earlier lines are not kept.", Tone.DIM),))
        for told in list(self._lines)[max(0, first - dropped) :]:
            head = f"{told.end:<{self._width}} │ " if told.end else ""
            pieces = folded((Run(told.text, told.tone),), max(8, width - len(head)))
            lines.extend((Run(head, Tone.DIM), *piece) for piece in pieces or [()])
        return lines
