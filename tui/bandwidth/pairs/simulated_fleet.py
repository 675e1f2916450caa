"""The processes of tests on simulated nodes, which measure between each other on one network."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tui.bandwidth.pairs.pairs_runner import NodeProcesses
from tui.bandwidth.processes import ToolProcess
from tui.bandwidth.simulated_processes import SimulatedProcessStarter

if TYPE_CHECKING:
    from probes.host.protocol import Host
    from probes.simulation.host import SimulatedHost


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
) -> dict[str, tuple[Host, NodeProcesses]]:
    """Connect simulated nodes, which share one clock, to a network; return what `fleet bench` needs of each.

    `wait` lets time pass on their clock.
    """
    from probes.simulation.bandwidth.node_pair import SimulatedNetwork

    network = SimulatedNetwork(next(iter(hosts.values())).monotonic) if hosts else None
    nodes: dict[str, tuple[Host, NodeProcesses]] = {}
    for name, host in hosts.items():
        assert network is not None
        host.join(network, name)
        nodes[name] = host, SimulatedNodeProcesses(host, wait)
    return nodes
