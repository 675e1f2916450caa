"""A simulated fleet with a clock of its own, and nodes that misbehave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from probes.host.protocol import Host
from probes.simulation.host import SimulatedHost
from tui.bandwidth.pairs.pairs_runner import UNCONFIRMED, NodeProcesses
from tui.bandwidth.processes import ProcessExit, ToolProcess
from tui.bandwidth.simulated_processes import connect_simulated

SLOW = "pcie-l40s+half-rate"
GOOD = "pcie-l40s"  # one NIC, which makes a fleet cheap


class Clock:
    """Time passes only while someone waits."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.on_pause: list[Callable[[], object]] = []

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        for call in self.on_pause:
            call()


@dataclass
class WatchedProcesses:
    """NodeProcesses that notes what runs."""

    inner: NodeProcesses
    started: list[ToolProcess] = field(default_factory=list)
    argvs: list[tuple[str, ...]] = field(default_factory=list)
    is_closed: bool = False

    def start(self, argv: Sequence[str], seconds: float) -> ToolProcess:
        assert seconds < 120
        process = self.inner.start(argv, seconds)
        self.started.append(process)
        self.argvs.append(tuple(argv))
        return process

    def close(self) -> None:
        self.is_closed = True
        self.inner.close()

    @property
    def alive(self) -> list[ToolProcess]:
        for process in self.started:
            process.lines(0.0)
        return [process for process in self.started if process.ended is None]


class DeadProcess:
    """A process on a node that answers nothing any more."""

    ended: ProcessExit | None = None

    def lines(self, seconds: float) -> list[str]:
        return []

    def end(self) -> None:
        self.ended = ProcessExit(None, 0.0, f"lost the connection: {UNCONFIRMED}")


class DeadProcesses:
    """NodeProcesses of such a node."""

    def __init__(self) -> None:
        self.started: list[DeadProcess] = []

    def start(self, argv: Sequence[str], seconds: float) -> ToolProcess:
        self.started.append(DeadProcess())
        return self.started[-1]

    def close(self) -> None:
        return


class LostProcesses(DeadProcesses):
    """NodeProcesses whose connection breaks with an exception."""

    def start(self, argv: Sequence[str], seconds: float) -> ToolProcess:
        raise ConnectionResetError(104, "Connection reset by peer")


@dataclass
class Fleet:
    """Nodes by name, their clock, and what was started on them."""

    clock: Clock
    hosts: dict[str, SimulatedHost]
    processes: dict[str, WatchedProcesses]
    nodes: dict[str, tuple[Host, NodeProcesses]]

    @property
    def alive(self) -> dict[str, int]:
        counts = {name: len(watched.alive) for name, watched in self.processes.items()}
        return {name: count for name, count in counts.items() if count}


def fleet(*labels: str, with_jobs: bool = True) -> Fleet:
    """Return nodes gpu0, gpu1, … with these descriptions and faults."""
    clock = Clock()
    hosts = {f"gpu{number}": SimulatedHost(label, number, clock) for number, label in enumerate(labels)}
    if not with_jobs:
        for host in hosts.values():
            host.reboot(with_jobs=False)
    connected = connect_simulated(hosts, clock.pause)
    processes = {name: WatchedProcesses(each[1]) for name, each in connected.items()}
    nodes: dict[str, tuple[Host, NodeProcesses]] = {
        name: (hosts[name], watched) for name, watched in processes.items()
    }
    return Fleet(clock, hosts, processes, nodes)
