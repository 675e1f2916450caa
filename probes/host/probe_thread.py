"""Probes in separate threads, so that a probe that raises or hangs affects only itself.

A probe that keeps asking new questions is slow, and gdrtop waits for it: a node whose CPUs are busy with a
job answers late, but it answers. A probe that waits too long for a single answer is stuck, and gdrtop gives
up: a read of a device that has fallen off the bus never returns. So limits count from the newest question.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from probes.base.frozen import frozen
from probes.base.origin import Origin
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.protocol import Host

T = TypeVar("T")

LONGEST_SECONDS = 60.0  # time limit of a slow probe
_MOST_IDLE = 3  # threads that wait for the next probe

# Which sources of a node were read, for `gdrtop -v`. Nothing is logged until `begin_log`: the answers of a
# whole fleet would take much memory.
_MOST_LOGGED = 1000  # sources; a node has about forty


@frozen
class ReadSource:
    """One reading of a source."""

    origin: Origin
    name: str  # that of its probe: "PCIe errors"
    seconds: float
    answer: object
    questions: tuple[str, ...] = ()  # paths and commands that were asked of this machine, in order


_LOG: dict[tuple[Origin, str], ReadSource] = {}
_is_on = False


def begin_log() -> None:
    """Log sources from now on."""
    global _is_on
    _is_on = True


def is_logging() -> bool:
    """Return whether sources are logged."""
    return _is_on


def log_source(origin: Origin, name: str, began: float, answer: object, questions: Iterable[str]) -> None:
    """Log a source that was read since `began`, by the monotonic clock, instead of its reading before."""
    if _is_on and (len(_LOG) < _MOST_LOGGED or (origin, name) in _LOG):
        _LOG[origin, name] = ReadSource(origin, name, time.monotonic() - began, answer, tuple(questions))


def end_log() -> tuple[ReadSource, ...]:
    """Stop, and return the newest reading of each source."""
    global _is_on
    _is_on = False
    sources = tuple(_LOG.values())
    _LOG.clear()
    return sources


class Progress:
    """The newest question that a thread has asked its host."""

    def __init__(self) -> None:
        self.question = ""
        self.asked_at = time.monotonic()
        self.allowed_seconds = 0.0  # the time limit of a command
        self.questions: list[str] | None = [] if _is_on else None  # all of them

    def quiet_seconds(self) -> float:
        """Return the seconds for which the newest question has been open beyond its own limit."""
        return time.monotonic() - self.asked_at - self.allowed_seconds


_OF_THREAD = threading.local()
_NEWEST = Progress()  # of all followed threads


def follow(progress: Progress) -> None:
    """Note the questions of this thread in `progress` from now on."""
    _OF_THREAD.progress = progress


def note(question: str, allowed_seconds: float = 0.0) -> None:
    """Note that this thread asks its host a question now; does nothing in other threads."""
    progress: Progress | None = getattr(_OF_THREAD, "progress", None)
    if progress is None:
        return
    now = time.monotonic()
    for noted in (progress, _NEWEST):
        noted.question, noted.allowed_seconds, noted.asked_at = question, allowed_seconds, now
    if progress.questions is not None:
        progress.questions.append(question)


def quiet_seconds() -> float:
    """Return the seconds since any followed thread asked its newest question."""
    return _NEWEST.quiet_seconds()


class AnsweredHost:
    """A host whose answers have all come: nothing can hang, so its probes run in the thread that starts them.

    Handing each probe to a thread costs as much as the probes themselves where several cores are idle.
    """


class _Thread:
    """A daemon thread that runs one probe after another: starting one costs twenty system calls."""

    def __init__(self) -> None:
        self._work: SimpleQueue[RunningProbe[Any]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def give(self, probe: RunningProbe[Any]) -> None:
        """Run this now; the thread must be idle or new."""
        self._thread.name = f"probe {probe.name}"
        self._work.put(probe)

    def _run(self) -> None:
        while True:
            probe = self._work.get()
            probe.run()
            self._thread.name = "idle probe"
            # Idle first: who waits for the answer may give this thread the next probe at once.
            with _LOCK:
                is_idle = len(_IDLE) < _MOST_IDLE
                if is_idle:
                    _IDLE.append(self)
            probe.end()
            del probe  # it keeps the answer
            if not is_idle:
                return


class RunningProbe(Generic[T]):
    """A probe in a daemon thread, which does not delay the end of the program."""

    def __init__(self, host: Host, name: str, ask: Callable[[], Maybe[T]]) -> None:
        self.name = name
        self._host = host
        self.ask = ask
        self._began = time.monotonic()
        self._progress = Progress()
        self._is_given_up = False
        self._done = threading.Lock()  # locked until there is an answer; cheaper than an Event
        self._done.acquire()
        self._answer: Maybe[T]  # when it is done

    def start(self) -> None:
        """Start the thread, or run at once if the host has all answers."""
        if isinstance(self._host, AnsweredHost):
            before = getattr(_OF_THREAD, "progress", None)
            self.run()
            _OF_THREAD.progress = before
            self.end()
            return
        try:
            with _LOCK:
                thread = _IDLE.pop() if _IDLE else None
            (thread or _Thread()).give(self)
        except RuntimeError as error:  # no more threads available
            self._answer = self._failure(error)
            self.end()

    def wait(self, seconds: float) -> bool:
        """Wait for the probe, at most this long; return whether it has ended."""
        if not self._done.acquire(timeout=max(0.0, seconds)):
            return False
        self._done.release()  # for the next one who waits
        return True

    def answer(self, seconds: float) -> Maybe[T]:
        """Return the answer; give up when a single question has been open for `seconds`."""
        while True:
            until_end = self._began + LONGEST_SECONDS - time.monotonic()
            left = min(seconds - self._progress.quiet_seconds(), until_end)
            if self.wait(max(0.0, left)):
                return self._answer
            if left <= 0:
                answer = self._timed_out(seconds)
                self._log(answer)
                self._is_given_up = True
                return answer

    def _timed_out(self, seconds: float) -> Unknown:
        if self._progress.quiet_seconds() < seconds:
            return Unknown(Reason.TIMED_OUT, self.name, f"not finished after {LONGEST_SECONDS:.0f} s")
        question, waited = self._progress.question, time.monotonic() - self._progress.asked_at
        source = f" from {printable(question, 120)}" if question else ""
        return Unknown(Reason.TIMED_OUT, self.name, f"no answer{source} for {waited:.0f} s")

    def run(self) -> None:
        """Ask, in this thread."""
        follow(self._progress)
        try:
            self._answer = self.ask()
        except Exception as error:  # a probe that fails affects only its own panel
            self._answer = self._failure(error)

    def _failure(self, error: Exception) -> Unknown:
        reason = Reason.IO_ERROR if isinstance(error, OSError) else Reason.MALFORMED
        detail = printable(f"the probe failed: {type(error).__name__}: {error}", 200)
        return Unknown(reason, self.name, detail)

    def _log(self, answer: object) -> None:
        """Log the answer that counts; one that comes too late does not."""
        if not self._is_given_up:
            log_source(self._host.origin, self.name, self._began, answer, self._progress.questions or ())

    def end(self) -> None:
        """Let those who wait have the answer."""
        self._log(self._answer)
        with _LOCK:
            _RUNNING.pop((id(self._host), self.name), None)
        self._done.release()


def ask_here(host: Host, name: str, ask: Callable[[], T]) -> T:
    """Ask in this thread what is no probe, and log it like one."""
    if not _is_on:
        return ask()
    before = getattr(_OF_THREAD, "progress", None)
    progress, began = Progress(), time.monotonic()
    follow(progress)
    try:
        answer = ask()
    finally:
        _OF_THREAD.progress = before
    log_source(host.origin, name, began, answer, progress.questions or ())
    return answer


# Probes that have not returned, by host and name. A read that hangs in the kernel cannot be ended, so the
# next round waits for the same probe instead of starting another one. Python does not reuse an id while its
# object exists.
_RUNNING: dict[tuple[int, str], RunningProbe[Any]] = {}
_IDLE: list[_Thread] = []
_LOCK = threading.Lock()


def start_probe(host: Host, name: str, ask: Callable[[], Maybe[T]]) -> RunningProbe[T]:
    """Start a probe, or return the running one of the same host and name."""
    with _LOCK:
        running: RunningProbe[T] | None = _RUNNING.get((id(host), name))
        if running is not None:
            return running
        running = _RUNNING[id(host), name] = RunningProbe(host, name, ask)
    running.start()
    return running
