"""Probes in threads of their own: one that raises or hangs spoils its own place and nothing else.

A probe that keeps asking its host new questions is late and is waited for; one that has waited too long for a
single answer is stuck and is not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.progress import Progress, follow
from probes.host.protocol import Host

T = TypeVar("T")

LONGEST_SECONDS = 60.0  # of a probe that is late


class RunningProbe(Generic[T]):
    """One probe in a daemon thread of its own: leaving the program does not wait for it."""

    def __init__(self, host: Host, name: str, ask: Callable[[], Maybe[T]]) -> None:
        self._host = host
        self._name = name
        self._ask = ask
        self._began = time.monotonic()
        self._progress = Progress()
        self._done = threading.Event()
        self._answer: Maybe[T] = Unknown(Reason.TIMED_OUT, name)

    def start(self) -> None:
        """Starts the thread."""
        try:
            threading.Thread(target=self._run, name=f"probe {self._name}", daemon=True).start()
        except RuntimeError as error:  # no more threads to be had
            self._end(self._failure(error))

    def wait(self, seconds: float) -> None:
        """Waits for the probe, at most that long."""
        self._done.wait(seconds)

    def answer(self, seconds: float) -> Maybe[T]:
        """What it found; given up once a single question of it has been open for `seconds`."""
        while True:
            left = min(
                seconds - self._progress.quiet_seconds(), self._began + LONGEST_SECONDS - time.monotonic()
            )
            if self._done.wait(max(0.0, left)):
                return self._answer
            if left <= 0:
                return self._given_up(seconds)

    def _given_up(self, seconds: float) -> Unknown:
        if self._progress.quiet_seconds() < seconds:
            return Unknown(Reason.TIMED_OUT, self._name, f"not finished after {LONGEST_SECONDS:.0f} s")
        question, waited = self._progress.question, time.monotonic() - self._progress.asked_at
        source = f" from {printable(question, 120)}" if question else ""
        return Unknown(Reason.TIMED_OUT, self._name, f"no answer{source} for {waited:.0f} s")

    def _run(self) -> None:
        follow(self._progress)
        try:
            answer = self._ask()
        except Exception as error:  # whatever a probe does, it spoils its own panel and nothing else
            answer = self._failure(error)
        self._end(answer)

    def _failure(self, error: Exception) -> Unknown:
        reason = Reason.IO_ERROR if isinstance(error, OSError) else Reason.MALFORMED
        told = printable(f"the probe failed: {type(error).__name__}: {error}", 200)
        return Unknown(reason, self._name, told)

    def _end(self, answer: Maybe[T]) -> None:
        self._answer = answer
        with _LOCK:
            _RUNNING.pop((id(self._host), self._name), None)
        self._done.set()


# Probes that have not come back yet, by host and name. A read that hangs in the kernel cannot be ended: the
# next round asks after the same one instead of sending another after it. An id is not given out again while
# its host is here.
_RUNNING: dict[tuple[int, str], RunningProbe[Any]] = {}
_LOCK = threading.Lock()


def begin(host: Host, name: str, ask: Callable[[], Maybe[T]]) -> RunningProbe[T]:
    """Starts a probe; where the same one of before has not come back yet, it is that one."""
    with _LOCK:
        running: RunningProbe[T] | None = _RUNNING.get((id(host), name))
        if running is not None:
            return running
        running = _RUNNING[id(host), name] = RunningProbe(host, name, ask)
    running.start()
    return running
