"""Tests on a simulated node: tools that it plays, started and ended like those of a machine."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from tui.bandwidth.processes import LINE_LIMIT, ProcessExit, ToolProcess
from tui.bandwidth.supervisor import GRACE_SECONDS
from tui.runtime.ansi_text import sanitized, without_colors

_STEP_SECONDS = 0.05


class SimulatedTest(Protocol):
    """A tool that a simulated node plays."""

    def lines(self) -> tuple[str, ...]:
        """Printed since the last call, by the node's clock."""

    @property
    def exit_status(self) -> int | None:
        """None while it runs; set when all lines were given."""

    def end(self, signal: int) -> None:
        """It is signalled."""


class SimulatedNode(Protocol):
    """What plays tools."""

    def monotonic(self) -> float:
        """Its clock, in seconds."""

    def begin_test(self, argv: Sequence[str]) -> SimulatedTest:
        """Begins one."""


class SimulatedProcessStarter:
    """A simulated node, whose clock goes on while one waits."""

    def __init__(self, host: SimulatedNode, wait: Callable[[float], object] = time.sleep) -> None:
        self._host, self._wait = host, wait

    def start(self, argv: Sequence[str], seconds: float) -> ToolProcess:
        """Has the node play a tool."""
        return _SimulatedProcess(self._host, self._wait, self._host.begin_test(argv), seconds)


class _SimulatedProcess:
    """A tool that is played; ended like a real one."""

    def __init__(
        self, host: SimulatedNode, wait: Callable[[float], object], test: SimulatedTest, seconds: float
    ) -> None:
        self._host, self._wait, self._test, self._limit = host, wait, test, seconds
        self._began = host.monotonic()
        self._lock = threading.Lock()
        self._waiting: list[str] = []
        self._why = ""
        self._signalled_at: float | None = None
        self._killed = False
        self._gone: ProcessExit | None = None

    def lines(self, seconds: float) -> list[str]:
        until = self._host.monotonic() + seconds
        while True:
            with self._lock:
                ended = self._look()
                left = until - self._host.monotonic()
                if self._waiting or ended or left <= 0:
                    lines, self._waiting = self._waiting, []
                    return lines
            self._wait(min(_STEP_SECONDS, left))

    @property
    def ended(self) -> ProcessExit | None:
        return None if self._waiting else self._gone

    def end(self) -> None:
        while True:
            with self._lock:
                if self._look():
                    return
                self._signal("cancelled")
                if self._look():
                    return
            self._wait(_STEP_SECONDS)

    def _look(self) -> bool:
        """Takes what has been printed, and ends it where its time is over; whether it has ended."""
        if self._gone is not None:
            return True
        self._waiting += [without_colors(sanitized(line, LINE_LIMIT)) for line in self._test.lines()]
        now = self._host.monotonic()
        status = self._test.exit_status
        if status is not None:
            took = (now if self._signalled_at is None else self._signalled_at) - self._began
            self._gone = ProcessExit(status, took, self._why)
        elif self._signalled_at is not None or now - self._began >= self._limit:
            self._signal(f"ended after {self._limit:g} s, its limit of time")
        return self._gone is not None

    def _signal(self, why: str) -> None:
        """SIGTERM at first, and SIGKILL after the grace."""
        now = self._host.monotonic()
        if self._signalled_at is None:
            self._signalled_at, self._why = now, why
            self._test.end(signal.SIGTERM)
        elif now - self._signalled_at >= GRACE_SECONDS and not self._killed:
            self._killed = True
            self._test.end(signal.SIGKILL)
