"""A program that is played: lines that come with the clock, an exit status, and an end by a signal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from probes.base.text import printable

NEVER = float("inf")
_LINE_LIMIT = 4096


@dataclass(frozen=True)
class Line:
    """A line that is printed at a moment of the host's clock."""

    at: float
    text: str


@dataclass(frozen=True)
class Script:
    """What a program will print, in order; at NEVER it waits for another, or runs without end."""

    lines: Iterable[Line]
    ends_at: float = NEVER
    status: int = 0


class SimulatedTest:
    """One program on a simulated node; what it printed can be asked for as the clock goes."""

    def __init__(self, clock: Callable[[], float], script: Script, settle: Callable[[], None]) -> None:
        """`settle` lets happen between programs what is due by now, such as connections."""
        self._clock = clock
        self._settle = settle
        self._lines: Iterator[Line] = iter(script.lines)
        self._next: Line | None = None
        self._status = script.status
        self._exit_status: int | None = None
        self.ends_at = script.ends_at
        self.on_end: list[Callable[[float], None]] = []
        """Who wants to know, with the moment, that it was ended from outside."""

    def lines(self) -> tuple[str, ...]:
        """What it printed since the last call, stdout and stderr as they came, without line ends."""
        self._settle()
        now = self._clock()
        told = [_cleaned(line.text) for line in self._until(now)]
        if now >= self.ends_at and self._peek() is None:
            self._exit_status = self._status
        return tuple(told)

    @property
    def exit_status(self) -> int | None:
        """None while it runs, or has lines that nobody asked for; negative for a signal."""
        return self._exit_status

    def end(self, signal: int) -> None:
        """It gets a signal and ends; nothing happens where it has ended already."""
        self._settle()
        now = self._clock()
        if now < self.ends_at:
            self.cut(now, Script((), now, -signal))
            for tell in self.on_end:
                tell(now)

    def follow(self, script: Script) -> None:
        """Goes on with this, after what it waited with."""
        self._lines = chain(self._lines, script.lines)
        self.ends_at, self._status = script.ends_at, script.status

    def cut(self, at: float, script: Script) -> None:
        """What it would have printed after a moment does not come; this comes instead."""
        said = list(self._until(at))
        self._lines, self._next = chain(said, script.lines), None
        self.ends_at, self._status = script.ends_at, script.status

    def _peek(self) -> Line | None:
        if self._next is None:
            self._next = next(self._lines, None)
        return self._next

    def _until(self, at: float) -> Iterator[Line]:
        while (line := self._peek()) is not None and line.at <= at:
            self._next = None
            yield line


def _cleaned(text: str) -> str:
    """One line, whatever words of the command stand in it; tabs are perftest's own."""
    return "\t".join(printable(part, _LINE_LIMIT) for part in text.split("\t"))


def spaced(at: float, seconds: float, *texts: str) -> tuple[Line, ...]:
    """Lines one after the other over so many seconds."""
    return tuple(Line(at + seconds * number / len(texts), text) for number, text in enumerate(texts, 1))


def ended(at: float, status: int, *texts: str) -> Script:
    """It prints these at once and ends."""
    return Script(tuple(Line(at, text) for text in texts), at, status)
