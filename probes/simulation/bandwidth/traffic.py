"""What tests add to the counters of a simulated node's ports, and what the running job leaves to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from probes.simulation.bandwidth.playback import NEVER
from probes.simulation.node.ports import port_of
from probes.simulation.node.tree import PlacedNic, Tree

SENT, RECEIVED = "port_xmit_data", "port_rcv_data"
_UNITS_OF_GIGABIT = 1e9 / 32  # counters count units of four octets


@dataclass
class Flow:
    """Traffic of one test over one counter; times by the node's seconds."""

    since: float
    gbps: float
    until: float = NEVER


@dataclass
class _Counter:
    """One counter file of a port: the job's own count, and the tests'."""

    job: Callable[[float], int]
    line_gbps: float
    flows: list[Flow] = field(default_factory=list)
    settled: float = 0.0  # what flows that are over have added, in units

    def total(self, seconds: float) -> int:
        return int(self.job(seconds) + self.added(seconds))

    def added(self, seconds: float) -> float:
        """The tests' units less those that the job had to leave to them: both share one line."""
        flows = [one for one in self.flows if one.since < seconds]
        edges = {min(edge, seconds) for one in flows for edge in (one.since, one.until)}
        moments = sorted(edges)
        units = self.settled
        for begin, end in pairwise(moments):
            gbps = sum(one.gbps for one in flows if one.since <= begin and end <= one.until)
            share = min(1.0, gbps / self.line_gbps) if self.line_gbps else 0.0
            units += gbps * (end - begin) * _UNITS_OF_GIGABIT
            units -= share * (self.job(end) - self.job(begin))
        return units

    def add(self, flow: Flow, now: float) -> None:
        if self.flows and all(one.until <= now for one in self.flows):
            self.settled, self.flows = self.added(now), []
        self.flows.append(flow)


class Traffic:
    """The counters of all ports of a node; `settle` lets happen between programs what is due."""

    def __init__(self, tree: Tree, settle: Callable[[], None]) -> None:
        self._counters: dict[tuple[str, str], _Counter] = {}
        for nic in tree.nics:
            for name in (SENT, RECEIVED):
                self._take_over(tree, nic, name, settle)

    def _take_over(self, tree: Tree, nic: PlacedNic, name: str, settle: Callable[[], None]) -> None:
        path = f"{port_of(nic)}/counters/{name}"
        content = tree.files.get(path)
        if content is None:
            return

        def job(seconds: float) -> int:
            told = content(seconds) if callable(content) else content
            return int(told) if isinstance(told, str) and told.strip().isdecimal() else 0

        counter = _Counter(job, float(nic.kind.rate.partition(" ")[0]))
        self._counters[nic.name, name] = counter

        def show(seconds: float) -> str:
            settle()
            return f"{counter.total(seconds)}\n"

        tree.add(path, show)

    def add(self, nic: str, name: str, flow: Flow, now: float) -> None:
        """A test's traffic, at earliest from now on: what was counted stays."""
        counter = self._counters.get((nic, name))
        if counter is not None:
            flow.since = max(flow.since, now)
            counter.add(flow, now)

    def job_gbps(self, nic: str, seconds: float) -> float:
        """What the job sends over a NIC about now, were it alone."""
        counter = self._counters.get((nic, SENT))
        if counter is None:
            return 0.0
        return max(0.0, counter.job(seconds) - counter.job(seconds - 1.0)) / _UNITS_OF_GIGABIT


def stop(flows: Iterable[Flow], seconds: float) -> None:
    """A test has ended before its time."""
    for flow in flows:
        flow.until = min(flow.until, seconds)
