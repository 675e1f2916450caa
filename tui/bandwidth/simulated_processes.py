"""Processes of tests on simulated nodes, which play them back, also between nodes of one network."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tui.bandwidth.processes import LINE_LIMIT, ProcessExit, ToolProcess
from tui.bandwidth.supervisor import GRACE_SECONDS
from tui.terminal.program_output import sanitized, without_colors

if TYPE_CHECKING:
    from probes.host.protocol import Host
    from probes.simulation.bandwidth.playback import SimulatedTest
    from probes.simulation.host import SimulatedHost

_STEP_SECONDS = 0.05


class SimulatedProcessStarter:
    """Starts tools on a simulated node; `wait` lets time pass on its clock."""

    def __init__(self, host: SimulatedHost, wait: Callable[[float], object] = time.sleep) -> None:
        self._host, self._wait = host, wait

    def start(self, argv: Sequence[str], seconds: float) -> ToolProcess:
        """Start a tool on the node."""
        return self.follow(self._host.begin_test(argv), seconds)

    def follow(self, test: SimulatedTest, seconds: float) -> ToolProcess:
        """Return a program that the node has started as a process."""
        return _SimulatedProcess(self._host, self._wait, test, seconds)


class _SimulatedProcess:
    def __init__(
        self, host: SimulatedHost, wait: Callable[[float], object], test: SimulatedTest, seconds: float
    ) -> None:
        self._host, self._wait, self._test, self._limit = host, wait, test, seconds
        self._began = host.monotonic()
        self._lock = threading.Lock()
        self._waiting: list[str] = []
        self._why = ""
        self._signalled_at: float | None = None
        self._killed = False
        self._exit: ProcessExit | None = None

    def lines(self, seconds: float) -> list[str]:
        until = self._host.monotonic() + seconds
        while True:
            with self._lock:
                ended = self._update()
                left = until - self._host.monotonic()
                if self._waiting or ended or left <= 0:
                    lines, self._waiting = self._waiting, []
                    return lines
            self._wait(min(_STEP_SECONDS, left))

    @property
    def ended(self) -> ProcessExit | None:
        return None if self._waiting else self._exit

    def end(self) -> None:
        while True:
            with self._lock:
                if self._update():
                    return
                self._signal("canceled")
                if self._update():
                    return
            self._wait(_STEP_SECONDS)

    def _update(self) -> bool:
        """Read new lines, and stop the tool if its time is over; return whether it has ended."""
        if self._exit is not None:
            return True
        self._waiting += [without_colors(sanitized(line, LINE_LIMIT)) for line in self._test.lines()]
        now = self._host.monotonic()
        if (status := self._test.exit_status) is not None:
            took = (now if self._signalled_at is None else self._signalled_at) - self._began
            self._exit = ProcessExit(status, took, self._why, self._test.cpu_seconds(took))
        elif self._signalled_at is not None or now - self._began >= self._limit:
            self._signal(f"stopped after its time limit of {self._limit:g} s")
        return self._exit is not None

    def _signal(self, why: str) -> None:
        """Send SIGTERM first, and SIGKILL after the grace period."""
        now = self._host.monotonic()
        if self._signalled_at is None:
            self._signalled_at, self._why = now, why
            self._test.end(signal.SIGTERM)
        elif now - self._signalled_at >= GRACE_SECONDS and not self._killed:
            self._killed = True
            self._test.end(signal.SIGKILL)


class SimulatedNodeProcesses:
    """NodeProcesses of one simulated node."""

    def __init__(self, host: SimulatedHost, wait: Callable[[float], object]) -> None:
        self._starter = SimulatedProcessStarter(host, wait)
        self._started: list[ToolProcess] = []

    def start(self, argv: Sequence[str], seconds: float) -> ToolProcess:
        """Start a tool on the node."""
        process = self._starter.start(argv, seconds)
        self._started = [each for each in self._started if each.ended is None] + [process]
        return process

    def close(self) -> None:
        """End all that still run."""
        for process in self._started:
            process.end()


def connect_simulated(
    hosts: Mapping[str, SimulatedHost], wait: Callable[[float], object] = time.sleep
) -> dict[str, tuple[Host, SimulatedNodeProcesses]]:
    """Connect simulated nodes, which share one clock, to a network; return what `fleet bench` needs of each.

    `wait` lets time pass on their clock.
    """
    from probes.simulation.bandwidth.node_pair import SimulatedNetwork

    network = SimulatedNetwork(next(iter(hosts.values())).monotonic) if hosts else None
    nodes: dict[str, tuple[Host, SimulatedNodeProcesses]] = {}
    for name, host in hosts.items():
        assert network is not None
        host.join(network, name)
        nodes[name] = host, SimulatedNodeProcesses(host, wait)
    return nodes
