"""The counters of a simulated node's ports: what tests add, and what the running job leaves to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from probes.simulation.bandwidth.playback import NEVER
from probes.simulation.node.devices.ports import RECEIVED, SENT, port_of
from probes.simulation.node.model.tree import PlacedNic, Tree

_UNITS_OF_GIGABIT = 1e9 / 32  # counters count units of four octets


@dataclass
class Flow:
    """Traffic of one test on one counter; times in seconds since the node started."""

    since: float
    gbps: float
    until: float = NEVER


@dataclass
class _Counter:
    """One counter file of a port: the job's own count, and that of the tests."""

    job: Callable[[float], int]
    line_gbps: float
    flows: list[Flow] = field(default_factory=list)
    finished: float = 0.0  # units that finished flows have added

    def total(self, seconds: float) -> int:
        return int(self.job(seconds) + self.added(seconds))

    def added(self, seconds: float) -> float:
        """Return the tests' units, minus those that the job had to give up: both share one line."""
        flows = [flow for flow in self.flows if flow.since < seconds]
        edges = {min(edge, seconds) for flow in flows for edge in (flow.since, flow.until)}
        moments = sorted(edges)
        units = self.finished
        for begin, end in pairwise(moments):
            gbps = sum(flow.gbps for flow in flows if flow.since <= begin and end <= flow.until)
            share = min(1.0, gbps / self.line_gbps) if self.line_gbps else 0.0
            units += gbps * (end - begin) * _UNITS_OF_GIGABIT
            units -= share * (self.job(end) - self.job(begin))
        return units

    def add(self, flow: Flow, now: float) -> None:
        if self.flows and all(each.until <= now for each in self.flows):
            self.finished, self.flows = self.added(now), []
        self.flows.append(flow)


class Traffic:
    """The counters of all ports of a node; `advance` does what is due between programs."""

    def __init__(self, tree: Tree, advance: Callable[[], None]) -> None:
        self._counters: dict[tuple[str, str], _Counter] = {}
        for nic in tree.nics:
            for name in (SENT, RECEIVED):
                self._replace(tree, nic, name, advance)

    def _replace(self, tree: Tree, nic: PlacedNic, name: str, advance: Callable[[], None]) -> None:
        path = f"{port_of(nic)}/counters/{name}"
        content = tree.files.get(path)
        if content is None:
            return

        def job(seconds: float) -> int:
            text = content(seconds) if callable(content) else content
            return int(text) if isinstance(text, str) and text.strip().isdecimal() else 0

        counter = _Counter(job, nic.kind.line_gbps)
        self._counters[nic.name, name] = counter

        def show(seconds: float) -> str:
            advance()
            return f"{counter.total(seconds)}\n"

        tree.add(path, show)

    def add(self, nic: str, name: str, flow: Flow, now: float) -> None:
        """Add a test's traffic, from now on at the earliest: counters never go back."""
        counter = self._counters.get((nic, name))
        if counter is not None:
            flow.since = max(flow.since, now)
            counter.add(flow, now)

    def job_gbps(self, nic: str, seconds: float) -> float:
        """Return the Gb/s that the job sends over a NIC, without the tests."""
        counter = self._counters.get((nic, SENT))
        if counter is None:
            return 0.0
        return max(0.0, counter.job(seconds) - counter.job(seconds - 1.0)) / _UNITS_OF_GIGABIT


def stop(flows: Iterable[Flow], seconds: float) -> None:
    """End the flows of a test that was stopped."""
    for flow in flows:
        flow.until = min(flow.until, seconds)
