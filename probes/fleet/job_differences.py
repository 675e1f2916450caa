"""The ranks of a job that differ from all others, on any node, and the port that fell silent first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from probes.base.grouping import grouped
from probes.base.text import join_limited, plural
from probes.base.unknown import Maybe, Reason, Unknown
from probes.fleet.job_model import ClockOffset, Difference, FleetRank, NodeSample, Silence
from probes.live.model.activity import BUSY_PERCENT, IDLE_PERCENT, SILENT_SECONDS, moves_data
from probes.live.model.sample import GDR_WORDS, NO_PATH, OddOne, PathWord, Standstill, path_phrase
from probes.live.model.transfer import TransferWord, transfer_phrase
from probes.live.odd_one_out import odd_members

H = TypeVar("H", bound=Hashable)
_OF_NODE = ("link", "place", "cpus")  # aspects that a node compares by itself
_NAMED = 3


def different_ranks(ranks: Sequence[FleetRank], waits: bool) -> list[Difference]:
    """Return the ranks that are stopped, use another path or another number of NICs, or whose GPU is idle.

    `waits`: the job moves no data, and its ranks wait; only then GPUs are compared. A rank of which a fact is
    unknown is left out of that comparison.
    """
    return [
        *_different(ranks, "state", lambda rank: rank.process.is_stopped, _state_phrase),
        *_different(ranks, "path", _use, _use_phrase),
        *_different(ranks, "path", _gdr_path, path_phrase),
        *_different(ranks, "path", _transfer, _transfer_phrase),
        *_different(ranks, "nics", _nics, _nics_phrase),
        *(_different(ranks, "gpu", _is_busy, _gpu_phrase) if waits else ()),
    ]


def _different(
    ranks: Sequence[FleetRank],
    aspect: str,
    value: Callable[[FleetRank], H | None],
    phrase: Callable[[H, bool], str],
) -> Iterator[Difference]:
    """Yield the few ranks with another value than all others; one difference for a node with only such ranks.

    `phrase`: what a rank with this value does, or several of them.
    """
    members = [rank for rank in ranks if value(rank) is not None]
    odd = odd_members(members, value) or _odd_node(members, value)
    if odd is None:
        return
    rest = f"the other {len(members) - len(odd[0])} ranks of this job {phrase(odd[1], True)}"
    groups = grouped(((rank.node, value(rank)), rank) for rank in odd[0])
    for (node, here), group in sorted(groups.items(), key=lambda item: len(item[1])):
        assert here is not None
        all_are_likely = aspect == "path" and all(rank.process.is_path_likely for rank in group)
        likely = "likely " * all_are_likely
        keys = tuple(rank.key for rank in group)
        if len(group) == 1:
            name = group[0].name
            yield Difference(aspect, name, f"{name} {likely}{phrase(here, False)}; {rest}", keys)
            continue
        on_node = sum(rank.node == node for rank in ranks)
        count = f"all {on_node}" if len(group) == on_node else f"{len(group)} of {on_node}"
        sentence = f"{count} ranks on {node} {likely}{phrase(here, True)}; {rest}"
        yield Difference(aspect, node, sentence, keys)


def _odd_node(
    members: Sequence[FleetRank], value: Callable[[FleetRank], H | None]
) -> tuple[list[FleetRank], H] | None:
    """Return the ranks of the few nodes that differ where each node is uniform, as `odd_members` does."""
    by_node = {rank.node: rank for rank in members}
    if any(value(rank) != value(by_node[rank.node]) for rank in members):
        return None
    odd = odd_members(list(by_node.values()), value)
    nodes = {rank.node for rank in odd[0]} if odd else set()
    return None if odd is None else ([rank for rank in members if rank.node in nodes], odd[1])


def _state_phrase(is_stopped: bool, of_many: bool) -> str:
    return f"{'are' if of_many else 'is'} {'stopped' if is_stopped else 'running'}"


def _use(rank: FleetRank) -> str | None:
    """Return the path of a rank, the same for both kinds of GPUDirect RDMA."""
    word = rank.process.path.word
    if word in NO_PATH or rank.process.transfer is not None:
        return None
    return "" if word in GDR_WORDS else word.value


def _use_phrase(path: str, of_many: bool) -> str:
    if path:
        return path_phrase(PathWord(path), of_many)
    return f"{'use' if of_many else 'uses'} GPUDirect RDMA"


def _gdr_path(rank: FleetRank) -> PathWord | None:
    word = rank.process.path.word
    return word if word in GDR_WORDS and rank.process.transfer is None else None


def _transfer(rank: FleetRank) -> TransferWord | None:
    moved = rank.process.transfer
    return moved.word if moved is not None and moved.is_moving else None


def _transfer_phrase(word: TransferWord, of_many: bool) -> str:
    return transfer_phrase(word, of_many)


def _nics(rank: FleetRank) -> int | None:
    is_unlisted = rank.process.transfer is not None or rank.process.path.word is PathWord.TCP
    return None if is_unlisted else len(rank.process.ready_nics)


def _nics_phrase(count: int, of_many: bool) -> str:
    nics = f"{plural(count, 'NIC')}{' each' * of_many}" if count else "no NIC"
    return f"{'use' if of_many else 'uses'} {nics}"


def _is_busy(rank: FleetRank) -> bool | None:
    load = rank.gpu_percent
    if isinstance(load, Unknown) or not rank.gpus or IDLE_PERCENT < load < BUSY_PERCENT:
        return None
    return load >= BUSY_PERCENT


def _gpu_phrase(is_busy: bool, of_many: bool) -> str:
    load = "busy" if is_busy else "idle"
    return f"have {load} GPUs" if of_many else f"has {'a' if is_busy else 'an'} {load} GPU"


def differences_of_nodes(odd: Mapping[str, Iterable[OddOne]], ranks: Sequence[FleetRank]) -> list[Difference]:
    """Return what nodes find by themselves, such as a slow PCIe link; the same on several nodes once."""
    nodes: dict[tuple[str, str], list[str]] = {}
    pids: dict[tuple[str, str], int | None] = {}
    for node, members in odd.items():
        for member in members:
            if member.aspect in _OF_NODE:
                nodes.setdefault((member.aspect, member.sentence), []).append(node)
                pids[node, member.sentence] = member.pid
    return [
        Difference(
            aspect,
            names[0],
            f"{some_names(names)}: {sentence}",
            tuple(rank.key for rank in ranks if pids.get((rank.node, sentence)) == rank.process.pid),
        )
        for (aspect, sentence), names in nodes.items()
    ]


def some_names(names: Sequence[str]) -> str:
    """Return the first names: "gpu001, gpu002, gpu003 and 5 more"."""
    return join_limited(names, _NAMED)


# Which port of a job fell silent first, on the clocks of several nodes.
#
# A sample shows a rate since the sample before. So the moment when a port stopped lies in its last sample
# with traffic, and two ports can be ordered only if these samples do not overlap. In most hangs all ports
# stop within milliseconds of each other.

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
