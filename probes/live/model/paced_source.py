"""Sources that are read in a thread, and the less often the longer they take."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.probe_thread import RunningProbe, is_logging, start_probe
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
        self._question: Question | None = None  # the running one
        self._queue: deque[Question] = deque()  # in which it waits, if it has not been asked yet
        self._queued = 0  # questions in it before its thread began
        self._results: list[tuple[float, Maybe[T], float]] = []

    def read(self, host: Host, now: float, ask: Callable[[], Maybe[T]], is_early: bool = False) -> Maybe[T]:
        """Return the answer, a new one if it is time; `is_early`: something cheap shows that it changed."""
        read_together(host, now, Question(self, ask, is_early))
        return self.answer

    def is_due(self, now: float, is_early: bool) -> bool:
        """Take the result of the running question, if there is one; return whether to ask the next one."""
        if self.collect(now) or (self._running is not None and not self._withdraw()):
            return False
        if self.asked_at is None or now < self.asked_at:
            return True
        pause = min(self.seconds * (EARLY_TIMES if is_early else TIMES), self._longest)
        if not is_early:
            pause = max(self._shortest, pause)
        return now - self.asked_at >= pause - _TOLERANCE

    def ask(self, now: float, ask: Callable[[], Maybe[T]]) -> None:
        """Ask in this thread."""
        began = self._clock()
        try:
            answer = ask()
        except Exception as error:  # a source that fails must not end the sampling
            why = printable(f"{type(error).__name__}: {error}", 200)
            answer = Unknown(Reason.MALFORMED, self.name, why)
        self._results.append((now, answer, self._clock() - began))

    def follow(
        self, probe: RunningProbe[None], now: float, question: Question, queue: deque[Question], queued: int
    ) -> None:
        """Wait for this probe from now on, which asks the questions of a queue one after the other."""
        self._running, self._started_at, self.is_late = probe, now, True
        self._question, self._queue, self._queued = question, queue, queued

    def _withdraw(self) -> bool:
        """Take the question back if it waits behind another one, which may hang; return whether it did.

        A thread that has not begun asks it later: taken back, it would be given to the same thread again.
        """
        if len(self._queue) == self._queued:
            return False
        try:
            self._queue.remove(self._question)  # type: ignore[arg-type]
        except ValueError:
            return False
        self._running, self.is_late = None, False
        return True

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
    """Ask those sources whose time it is, in one thread: changing threads takes as long as most answers.

    A source that waits for one that does not answer gets a thread of its own. For a log of the sources, each
    has one.
    """
    if is_logging() and len(questions) > 1:
        return _read_each(host, now, questions)
    due = deque(question for question in questions if question.source.is_due(now, question.is_early))
    while due:
        waiting = list(due)
        work = partial(_ask_all, due, now)
        probe = start_probe(host, ", ".join(question.source.name for question in waiting), work)
        is_older = probe.ask is not work  # one of these sources has not answered an earlier question yet
        if is_older and len(waiting) > 1:
            return _read_each(host, now, waiting)
        queue = deque[Question]() if is_older else due
        for question in waiting:
            question.source.follow(probe, now, question, queue, len(waiting))
        if is_older:
            return None
        left = len(waiting)
        while not probe.wait(PATIENCE_SECONDS) and len(due) < left:  # it goes from one to the next
            left = len(due)
        for question in waiting:
            question.source.collect(now)
        if len(due) == len(waiting):  # the thread has not begun yet, on a busy node
            return None
    return None


def _read_each(host: Host, now: float, questions: Iterable[Question]) -> None:
    for question in questions:
        read_together(host, now, question)


def _ask_all(due: deque[Question], now: float) -> Maybe[None]:
    while due:
        try:
            question = due.popleft()
        except IndexError:  # another thread was faster
            break
        question.source.ask(now, question.ask)
    return None
