"""Probes in separate threads, so that a probe that raises or hangs affects only itself.

A probe that keeps asking new questions is slow, and gdrtop waits for it. A probe that waits too long for a
single answer is stuck, and gdrtop gives up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.progress import Progress, follow
from probes.host.protocol import Host

T = TypeVar("T")

LONGEST_SECONDS = 60.0  # time limit of a slow probe
_MOST_IDLE = 3  # threads that wait for the next probe


class _Thread:
    """A daemon thread that runs one probe after another: starting one costs twenty system calls."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def give(self, name: str, work: Callable[[], None]) -> None:
        """Run this now; the thread must be idle or new."""
        self._thread.name = name
        self._work.put(work)

    def _run(self) -> None:
        while True:
            work = self._work.get()
            work()
            del work  # it keeps the answer
            with _LOCK:
                self._thread.name = "idle probe"
                if len(_IDLE) >= _MOST_IDLE:
                    return
                _IDLE.append(self)


class RunningProbe(Generic[T]):
    """A probe in a daemon thread, which does not delay the end of the program."""

    def __init__(self, host: Host, name: str, ask: Callable[[], Maybe[T]]) -> None:
        self._host = host
        self._name = name
        self._ask = ask
        self._began = time.monotonic()
        self._progress = Progress()
        self._done = threading.Event()
        self._answer: Maybe[T] = Unknown(Reason.TIMED_OUT, name)

    def start(self) -> None:
        """Start the thread."""
        try:
            with _LOCK:
                thread = _IDLE.pop() if _IDLE else None
            (thread or _Thread()).give(f"probe {self._name}", self._run)
        except RuntimeError as error:  # no more threads available
            self._end(self._failure(error))

    def wait(self, seconds: float) -> None:
        """Wait for the probe, at most this long."""
        self._done.wait(seconds)

    def answer(self, seconds: float) -> Maybe[T]:
        """Return the answer; give up when a single question has been open for `seconds`."""
        while True:
            left = min(
                seconds - self._progress.quiet_seconds(), self._began + LONGEST_SECONDS - time.monotonic()
            )
            if self._done.wait(max(0.0, left)):
                return self._answer
            if left <= 0:
                return self._timed_out(seconds)

    def _timed_out(self, seconds: float) -> Unknown:
        if self._progress.quiet_seconds() < seconds:
            return Unknown(Reason.TIMED_OUT, self._name, f"not finished after {LONGEST_SECONDS:.0f} s")
        question, waited = self._progress.question, time.monotonic() - self._progress.asked_at
        source = f" from {printable(question, 120)}" if question else ""
        return Unknown(Reason.TIMED_OUT, self._name, f"no answer{source} for {waited:.0f} s")

    def _run(self) -> None:
        follow(self._progress)
        try:
            answer = self._ask()
        except Exception as error:  # a probe that fails affects only its own panel
            answer = self._failure(error)
        self._end(answer)

    def _failure(self, error: Exception) -> Unknown:
        reason = Reason.IO_ERROR if isinstance(error, OSError) else Reason.MALFORMED
        detail = printable(f"the probe failed: {type(error).__name__}: {error}", 200)
        return Unknown(reason, self._name, detail)

    def _end(self, answer: Maybe[T]) -> None:
        self._answer = answer
        with _LOCK:
            _RUNNING.pop((id(self._host), self._name), None)
        self._done.set()


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
