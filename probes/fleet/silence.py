"""Which port of a job fell silent first, on the clocks of several nodes.

A sample shows a rate since the sample before. So the moment when a port stopped lies in its last sample with
traffic, and two ports can be ordered only if these samples do not overlap. In most hangs all ports stop
within milliseconds of each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from probes.base.text import plural
from probes.base.unknown import Maybe, Reason, Unknown
from probes.fleet.job_model import ClockOffset, NodeSample, Silence
from probes.live.model.activity import SILENT_SECONDS, moves_data
from probes.live.model.sample import Standstill

_NAMED = 3
Port = tuple[str, str]  # node and RDMA device


@dataclass
class _Traffic:
    """When a port last moved data, in seconds since 1970 by its node's clock."""

    seen_from: float
    moved_from: float | None = None  # the last sample with traffic began; None: it has moved nothing yet
    moved_until: float = 0.0


class TrafficWatch:
    """The last traffic of each port of a job."""

    def __init__(self) -> None:
        self._ports: dict[Port, _Traffic] = {}
        self._newest: dict[str, float] = {}  # when the newest sample of a node was taken, by its clock
        self._clocks: dict[str, Maybe[ClockOffset]] = {}

    def add(self, node: str, seen: NodeSample, devices: Iterable[str]) -> None:
        """Note the rates of a job's devices in a new sample of a node."""
        self._clocks[node] = seen.clock
        at = seen.sample.taken_at
        before = self._newest.get(node, at)
        if at < before:  # the node's clock was set back
            self._ports = {key: port for key, port in self._ports.items() if key[0] != node}
            before = at
        self._newest[node] = at
        ports = {port.device: port for port in seen.sample.ports}
        for device in devices:
            moves = moves_data(ports.get(device))
            if moves is None:
                continue
            traffic = self._ports.setdefault((node, device), _Traffic(before))
            if moves:
                traffic.moved_from, traffic.moved_until = before, at

    def silence(self, used: Mapping[str, Iterable[str]]) -> Silence | None:
        """Return the silence of these ports, devices by node; None: one moves data, or too short a time."""
        keys = [(node, device) for node, devices in used.items() for device in devices]
        ports = {key: self._ports[key] for key in keys if key in self._ports}
        if not ports:
            return None
        moved = {key: port for key, port in ports.items() if port.moved_from is not None}
        seconds = min(
            self._newest[node] - (port.seen_from if port.moved_from is None else port.moved_until)
            for (node, _), port in (moved or ports).items()
        )
        if seconds < SILENT_SECONDS:
            return None
        if not moved:
            return _unknown(seconds, "the ports were silent before gdrtop began to watch")
        return self._first(moved, seconds)

    def _first(self, ports: Mapping[Port, _Traffic], seconds: float) -> Silence:
        """Find the ports whose last traffic certainly ended before that of all others."""
        nodes = {node for node, _ in ports}
        unclear = sorted(node for node in nodes if isinstance(self._clocks[node], Unknown))
        if unclear and len(nodes) > 1:
            reason = self._clocks[unclear[0]]
            return _unknown(seconds, f"the clock of {unclear[0]} is unknown ({reason})")
        spans = {key: self._span(key[0], port) for key, port in ports.items()}
        end = min(until for _, until in spans.values())
        first = sorted(key for key, (begin, until) in spans.items() if begin < end or until == end)
        if 1 < len(first) == len(spans):
            spread = max(until for _, until in spans.values()) - min(begin for begin, _ in spans.values())
            why = f"all {len(spans)} ports stopped within {spread:.1f} s, too close to order"
            return _unknown(seconds, why, end)
        names = tuple(f"{node} {device}" for node, device in first)
        apart = min((begin for key, (begin, _) in spans.items() if key not in first), default=end) - end
        said = "fell silent first" if len(first) == 1 else "fell silent before the others"
        sentence = f"{_named(names)} {said}"
        return Silence(
            seconds, names, f"{sentence}, at least {apart:.1f} s earlier" if apart > 0 else sentence, end
        )

    def _span(self, node: str, port: _Traffic) -> tuple[float, float]:
        """Return between which moments a port stopped, by this machine's clock as far as that is known."""
        assert port.moved_from is not None
        clock = self._clocks[node]
        if isinstance(clock, Unknown):
            return port.moved_from, port.moved_until
        half = clock.uncertainty_seconds
        return port.moved_from - clock.seconds - half, port.moved_until - clock.seconds + half


def standstill_of(nodes: Sequence[Maybe[Standstill | None]]) -> Maybe[Standstill | None]:
    """Return the standstill of a job that runs on these nodes; None: it moves data, or is watched too short.

    A rank that the others wait for may be on any of them.
    """
    unknown: Unknown | None = None
    stills: list[Standstill] = []
    for node in nodes:
        if node is None or (isinstance(node, Unknown) and node.reason is Reason.NOT_YET):
            return None
        if isinstance(node, Unknown):
            unknown = node if unknown is None else unknown
        else:
            stills.append(node)
    if unknown is not None or not stills:
        return unknown
    return Standstill(
        min(still.seconds for still in stills),
        all(still.is_whole for still in stills),
        sum(still.gpus for still in stills),
        sum(still.busy for still in stills),
        tuple(rank for still in stills for rank in still.blocked),
    )


def _unknown(seconds: float, why: str, at: float | None = None) -> Silence:
    return Silence(seconds, (), f"Which port fell silent first is unknown: {why}", at)


def _named(names: tuple[str, ...]) -> str:
    nodes = {name.partition(" ")[0] for name in names}
    if len(names) > _NAMED and len(nodes) == 1:
        return f"{plural(len(names), 'port')} of {nodes.pop()}"
    more = f" and {len(names) - _NAMED} more ports" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
