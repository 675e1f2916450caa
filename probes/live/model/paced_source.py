"""Sources that are read in a thread, and the less often the longer they take."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.probe_thread import RunningProbe, start_probe
from probes.host.protocol import Host

T = TypeVar("T")

SHORTEST_SECONDS = 2.0
TIMES = 100  # a source takes at most this part of the time: 1 %
EARLY_TIMES = 10  # while something changes
LONGEST_SECONDS = 15.0  # between two answers, if the source is not slower itself: paths must not get stale
PATIENCE_SECONDS = 0.25  # for one answer; then the last one is used
_GIVE_UP_SECONDS = 60.0
_TOLERANCE = 0.1  # seconds by which a sample may be early


class PacedSource(Generic[T]):
    """The last answer of one source. The caller's clock says when to ask again."""

    def __init__(
        self,
        name: str,
        shortest: float = SHORTEST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        longest: float = LONGEST_SECONDS,
    ) -> None:
        """`clock` measures what an answer costs; it is called in the source's own thread."""
        self.name = name
        self.answer: Maybe[T] = Unknown(Reason.TIMED_OUT, name, "not read yet")
        self.asked_at: float | None = None  # when the answer was asked for
        self.seconds = 0.0  # that the last answer took
        self.is_late = False  # the newest question has no answer yet
        self._shortest = shortest
        self._longest = longest
        self._clock = clock
        self._running: RunningProbe[None] | None = None
        self._started_at = 0.0
        self._results: list[tuple[float, Maybe[T], float]] = []

    def read(self, host: Host, now: float, ask: Callable[[], Maybe[T]], is_early: bool = False) -> Maybe[T]:
        """Return the answer, a new one if it is time; `is_early`: something cheap shows that it changed."""
        if self._is_due(now, is_early):
            self._running = start_probe(host, self.name, partial(self._ask, now, ask))
            self._started_at, self.is_late = now, True
            self._running.wait(PATIENCE_SECONDS)
            self.collect(now)
        return self.answer

    def _is_due(self, now: float, is_early: bool) -> bool:
        """Take the result of the running question, if there is one; return whether to ask the next one."""
        if self.collect(now) or self._running is not None:
            return False
        if self.asked_at is None or now < self.asked_at:
            return True
        pause = min(self.seconds * (EARLY_TIMES if is_early else TIMES), self._longest)
        if not is_early:
            pause = max(self._shortest, pause)
        return now - self.asked_at >= pause - _TOLERANCE

    def _ask(self, now: float, ask: Callable[[], Maybe[T]]) -> Maybe[None]:
        began = self._clock()
        try:
            answer = ask()
        except Exception as error:  # a source that fails must not end the sampling
            why = printable(f"{type(error).__name__}: {error}", 200)
            answer = Unknown(Reason.MALFORMED, self.name, why)
        self._results.append((now, answer, self._clock() - began))
        return None

    def collect(self, now: float) -> bool:
        """Take the result of the running question; return whether there is one."""
        if self._running is None:
            return False
        if not self._results:
            if not 0 <= now - self._started_at <= _GIVE_UP_SECONDS:
                self._running = None  # start_probe returns the same thread while it hangs
            self.is_late = self._running is not None
            return False
        self.asked_at, self.answer, self.seconds = self._results.pop()
        self._results.clear()
        self._running, self.is_late = None, False
        return True


class Question(NamedTuple):
    """What to ask a source if it is time."""

    source: PacedSource[Any]
    ask: Callable[[], Maybe[Any]]
    is_early: bool = False


def read_together(host: Host, now: float, *questions: Question) -> None:
    """Ask those sources whose time it is, each in a thread of its own: one that hangs holds up no other."""
    for question in questions:
        question.source.read(host, now, question.ask, question.is_early)
