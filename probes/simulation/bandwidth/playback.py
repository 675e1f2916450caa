"""The output of a simulated program: lines that appear as the clock advances, an exit status, a signal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from probes.base.data_files import read_toml_once
from probes.base.frozen import frozen
from probes.base.text import printable

NEVER = float("inf")
_LINE_LIMIT = 4096


class Line(NamedTuple):
    """A line and the moment of the host's clock at which it is printed."""

    at: float
    text: str


@frozen
class Script:
    """What a program prints, in order; with NEVER it waits for another program, or runs endlessly."""

    lines: Iterable[Line]
    ends_at: float = NEVER
    status: int = 0
    cpu_cores: float | None = None  # that it uses while it runs; None: not simulated


class SimulatedTest:
    """One program on a simulated node."""

    def __init__(self, clock: Callable[[], float], script: Script, advance: Callable[[], None]) -> None:
        """`advance` does what is due between programs, such as connecting them."""
        self._clock, self._advance = clock, advance
        self._lines: Iterator[Line] = iter(script.lines)
        self._next: Line | None = None
        self._status, self._cpu_cores = script.status, script.cpu_cores
        self.exit_status: int | None = None
        """None while it runs or has lines that were not read yet; negative for a signal."""
        self.ends_at = script.ends_at
        self.on_signal: list[Callable[[float], None]] = []
        """Called with the moment at which a signal ends the program."""

    def lines(self) -> tuple[str, ...]:
        """Return what it has printed since the last call: stdout and stderr mixed, without line ends."""
        self._advance()
        now = self._clock()
        printed = tuple(_clean(line.text) for line in self._until(now))
        if now >= self.ends_at and self._peek() is None:
            self.exit_status = self._status
        return printed

    def cpu_seconds(self, seconds: float) -> float | None:
        """Return the CPU time that it used in so many seconds; None if that is not simulated."""
        return None if self._cpu_cores is None else self._cpu_cores * seconds

    def end(self, signal: int) -> None:
        """End it by a signal, if it has not ended already."""
        self._advance()
        now = self._clock()
        if now < self.ends_at:
            self.cut(now, Script((), now, -signal))
            for notify in self.on_signal:
                notify(now)

    def follow(self, script: Script) -> None:
        """Continue with a script, after what it has waited with."""
        self._lines = chain(self._lines, script.lines)
        self.ends_at, self._status = script.ends_at, script.status

    def cut(self, at: float, script: Script) -> None:
        """Replace what it would print after a moment."""
        printed = list(self._until(at))
        self._lines, self._next = chain(printed, script.lines), None
        self.ends_at, self._status = script.ends_at, script.status

    def _peek(self) -> Line | None:
        if self._next is None:
            self._next = next(self._lines, None)
        return self._next

    def _until(self, at: float) -> Iterator[Line]:
        while (line := self._peek()) is not None and line.at <= at:
            self._next = None
            yield line


def _clean(text: str) -> str:
    """Return one printable line; tabs are perftest's own."""
    return "\t".join(printable(part, _LINE_LIMIT) for part in text.split("\t"))


def printed(tool: str, part: str, **figures: object) -> tuple[str, ...]:
    """Return the lines of a part of a tool's output in outputs.toml, with the figures of the run."""
    text: str = read_toml_once(__package__, "outputs.toml")[tool][part]
    return tuple(text.format(**figures).split("\n"))


def at_once(at: float, *texts: str) -> tuple[Line, ...]:
    """Return lines that are printed at one moment."""
    return tuple(Line(at, text) for text in texts)


def spread(at: float, seconds: float, *texts: str) -> tuple[Line, ...]:
    """Return lines evenly spread over a time."""
    return tuple(Line(at + seconds * number / len(texts), text) for number, text in enumerate(texts, 1))


def ended(at: float, status: int, *texts: str, before: Iterable[Line] = ()) -> Script:
    """Return a script that prints its lines at once and ends."""
    return Script((*before, *at_once(at, *texts)), at, status)
