"""What may have moved the bytes of inference engines between two readings: NICs, TCP connections, NVLink.

Read only while there is an engine. Its connections are those of its own sockets, where gdrtop may read whose
they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.host.nvml import NvmlLive
from probes.host.protocol import Host
from probes.host.tcp_sockets import TcpSocket
from probes.live.model.paced_source import PacedSource
from probes.live.model.transfer import TransferPeer
from probes.snapshot.rates import Reading, port_rates

MOVES = 1 << 20  # bytes a second: less is control traffic
MUCH = 100e6  # bytes a second over TCP: more than requests and their answers
_SHORTEST_SECONDS = 1.0  # between two readings
_TOLERANCE = 0.1
_MOST_PEERS = 8
_WEB_PORTS = (80, 443)  # of the other end: weights are loaded from there
# Where engines listen: NIXL's side channel in vLLM and llm-d, Mooncake's handshake, SGLang's bootstrap.
ENGINE_PORTS = frozenset((5600, 5557, 12001, 8998))

_ALONE = 2.0  # of two PCIe rates that are one transfer, the larger is at most this many times the other


class Flow(NamedTuple):
    """Bytes a second in both directions."""

    sent: float = 0.0
    received: float = 0.0

    @property
    def total(self) -> float:
        """Both directions."""
        return self.sent + self.received


NOTHING = Flow()


class Engine(NamedTuple):
    """A process whose transfers are watched."""

    pid: int
    uid: Maybe[int]
    nics: tuple[str, ...]  # on which it has a context
    gpus: tuple[str, ...]  # BDFs
    group: int  # the parent of the workers of one engine, which share a communicator of NCCL
    api_port: int | None = None  # whose bytes are no KV caches
    ports: frozenset[int] = ENGINE_PORTS


@frozen
class Moved:
    """What may have carried the bytes of an engine between two readings."""

    seconds: float
    rdma: Maybe[Flow]  # through the NICs on which it has a context
    tcp: Maybe[Flow]  # to and from other nodes
    inside: Maybe[Flow]  # over TCP on this node
    nvlink: Maybe[Flow]  # of its GPUs
    is_shared: bool = False  # processes of others have contexts on these NICs, too
    is_divided: bool = False  # other workers of the same engine have
    likely_owner: str = ""  # why its connections may be another process's; "": they are its own
    is_peer_copy: bool = False  # one GPU sends over PCIe what the GPU of another engine receives
    peers: tuple[TransferPeer, ...] = ()
    nics: tuple[str, ...] = ()  # those through which bytes moved
    has_neighbor: bool = False  # another engine is on this node
    has_other_pids: bool = False  # and in another PID namespace


class Connections(NamedTuple):
    """The TCP connections at the time of a reading, and the sockets of each engine."""

    reading: Reading
    sockets: Maybe[tuple[TcpSocket, ...]]
    inodes: Mapping[int, Maybe[tuple[int, ...]]]  # by pid
    pid_spaces: Mapping[int, str] = MappingProxyType({})  # PID namespaces by pid, where they are readable
    unread: Mapping[int, Unknown] = MappingProxyType({})  # why those of a process are not listed


class TransferReader:
    """Reads the connections of engines, while there are some, and compares each two readings."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._source: PacedSource[Connections] = PacedSource("TCP sockets", clock=clock)
        self._before: Connections | None = None
        self._moved: Mapping[int, Moved] = {}
        self._inodes: Mapping[int, Maybe[tuple[int, ...]]] = {}
        self._pid_spaces: Mapping[int, str] = {}
        self._away: Mapping[int, str] = {}  # network namespaces of those that are not in gdrtop's
        self._seen: frozenset[int] = frozenset()  # inodes of sockets for which owners were looked up

    def read(
        self, host: Host, reading: Reading, engines: Sequence[Engine], users: Mapping[str, frozenset[int]]
    ) -> Mapping[int, Moved]:
        """Return what each engine has moved; `users`: the pids with a context on each NIC."""
        pids = tuple(engine.pid for engine in engines)
        is_early = not self._moved  # the first two readings follow each other soon
        after = self._source.read(host, reading.at, lambda: self._ask(host, reading, pids), is_early)
        if isinstance(after, Unknown) or after is self._before:
            return self._moved
        before = self._before
        if before is None or after.reading.at < before.reading.at:
            self._before = after
        elif after.reading.at - before.reading.at >= _SHORTEST_SECONDS - _TOLERANCE:
            self._before, self._moved = after, moved_by(before, after, engines, users)
        return self._moved

    def forget(self) -> None:
        """Forget the last reading: there is no engine."""
        self._before, self._moved = None, {}

    def _ask(self, host: Host, reading: Reading, pids: tuple[int, ...]) -> Connections:
        """List the connections, and look up whose they are if there are new ones or other engines."""
        if self._inodes.keys() != set(pids):
            self._pid_spaces = {pid: known(host.link(f"/proc/{pid}/ns/pid"), "") for pid in pids}
            self._away = _away(host, pids)
        sockets, unread = host.tcp_sockets(), dict[int, Unknown]()
        if self._away:
            sockets, unread = _with_away(host, sockets, self._away, pids)
        inodes = frozenset(each.inode for each in known(sockets, ()))
        if inodes - self._seen or self._inodes.keys() != set(pids):
            self._inodes = host.socket_inodes(pids)
        self._seen = inodes
        return Connections(reading, sockets, self._inodes, self._pid_spaces, unread)


def _away(host: Host, pids: Iterable[int]) -> dict[int, str]:
    """Return the network namespaces of those processes that are known to be in another one than gdrtop."""
    own = host.link("/proc/self/ns/net")
    spaces = ((pid, host.link(f"/proc/{pid}/ns/net")) for pid in pids)
    if isinstance(own, Unknown):
        return {}
    return {pid: space for pid, space in spaces if not isinstance(space, Unknown) and space != own}


def _with_away(
    host: Host, sockets: Maybe[tuple[TcpSocket, ...]], away: Mapping[int, str], pids: Iterable[int]
) -> tuple[tuple[TcpSocket, ...], dict[int, Unknown]]:
    """Return the connections of all namespaces, and why those of some processes are unknown."""
    first = {space: pid for pid, space in away.items()}
    found = {space: host.namespace_sockets(pid) for space, pid in first.items()}
    unread = {pid: each for pid in away if isinstance(each := found[away[pid]], Unknown)}
    if isinstance(sockets, Unknown):
        unread |= {pid: sockets for pid in pids if pid not in away}
    return tuple(chain(known(sockets, ()), *(known(each, ()) for each in found.values()))), unread


class _Comparison(NamedTuple):
    """What two readings have in common for all engines."""

    seconds: float
    flows: Maybe[list[tuple[TcpSocket, Flow]]]  # of the connections that carried something
    here: frozenset[str]  # addresses of this node
    ports: Mapping[str, Maybe[Flow]]  # by RDMA device
    after: Connections
    engines: Sequence[Engine]
    groups: Mapping[int, frozenset[int]]  # the pids of the workers of one engine
    users: Mapping[str, frozenset[int]]
    has_other_pids: bool


def moved_by(
    before: Connections, after: Connections, engines: Sequence[Engine], users: Mapping[str, frozenset[int]]
) -> dict[int, Moved]:
    """Return what each engine has moved between two readings."""
    seconds = after.reading.at - before.reading.at
    groups = grouped((engine.group, engine.pid) for engine in engines)
    found = _Comparison(
        seconds=seconds,
        flows=_flows(before.sockets, after.sockets, seconds),
        here=frozenset(each.local for each in known(after.sockets, ())),
        ports=_port_flows(before.reading, after.reading),
        after=after,
        engines=engines,
        groups={group: frozenset(pids) for group, pids in groups.items()},
        users=users,
        has_other_pids=len({space for space in after.pid_spaces.values() if space}) > 1,
    )
    return {engine.pid: _moved(engine, found) for engine in engines}


def _flows(
    before: Maybe[tuple[TcpSocket, ...]], after: Maybe[tuple[TcpSocket, ...]], seconds: float
) -> Maybe[list[tuple[TcpSocket, Flow]]]:
    """Return the flow of each connection; one that was not listed before had carried less than a MiB."""
    if isinstance(after, Unknown):
        return after
    if isinstance(before, Unknown):
        return before
    carried = {_key(each): each for each in before}
    flows = []
    for each in after:
        earlier = carried.get(_key(each))
        sent, received = each.bytes_acked, each.bytes_received
        if earlier is not None and earlier.bytes_acked <= sent and earlier.bytes_received <= received:
            sent, received = sent - earlier.bytes_acked, received - earlier.bytes_received
        if sent or received:
            flows.append((each, Flow(sent / seconds, received / seconds)))
    return flows


def _key(each: TcpSocket) -> tuple[object, ...]:
    return each.inode, each.local, each.local_port, each.remote, each.remote_port


def _port_flows(before: Reading, after: Reading) -> dict[str, Maybe[Flow]]:
    """Return the flow through each RDMA device; without the interface's counters, which count TCP, too."""
    flows: dict[str, Maybe[Flow]] = {}
    for (device, _), rate in port_rates(before, after).items():
        if rate.interface:
            continue
        earlier = flows.get(device, NOTHING)
        if isinstance(rate.sent_gbps, Unknown) or isinstance(rate.received_gbps, Unknown):
            unread = rate.sent_gbps if isinstance(rate.sent_gbps, Unknown) else rate.received_gbps
            flows[device] = unread if isinstance(unread, Unknown) else NOTHING
        elif not isinstance(earlier, Unknown):
            flow = Flow(rate.sent_gbps * 1e9 / 8, rate.received_gbps * 1e9 / 8)
            flows[device] = total_of((earlier, flow))
    return flows


def _moved(engine: Engine, found: _Comparison) -> Moved:
    tcp: Maybe[Flow]
    inside: Maybe[Flow]
    peers: tuple[TransferPeer, ...] = ()
    doubt = ""
    owned = _owned(engine, found)
    if isinstance(owned, Unknown):
        tcp = inside = owned
    else:
        mine, doubt = owned
        ends = [(each.remote, each.is_loopback or each.remote in found.here, flow) for each, flow in mine]
        tcp = total_of(flow for _, is_inside, flow in ends if not is_inside)
        inside = total_of(flow for _, is_inside, flow in ends if is_inside)
        peers = _peers(ends)
    own = {device: found.ports[device] for device in engine.nics if device in found.ports}
    busy = tuple(device for device, flow in own.items() if known(flow, NOTHING).total >= MOVES)
    rdma, nvlink = _total(own.values()), _nvlink(found.after.reading, engine.gpus)
    workers, users = found.groups[engine.group], found.users
    using = frozenset[int]().union(*(users.get(device, ()) for device in busy or engine.nics))
    is_still = all(known(flow, NOTHING).total < MOVES for flow in (tcp, inside, rdma, nvlink))
    return Moved(
        seconds=found.seconds,
        rdma=rdma,
        tcp=tcp,
        inside=inside,
        nvlink=nvlink,
        is_shared=not using <= workers,
        is_divided=len(using & workers) > 1,
        likely_owner=doubt,
        is_peer_copy=is_still and _is_peer_copy(found.after.reading, engine, found.engines),
        peers=peers,
        nics=busy,
        has_neighbor=len(workers) < len(found.engines),
        has_other_pids=found.has_other_pids,
    )


def _owned(engine: Engine, compared: _Comparison) -> Maybe[tuple[list[tuple[TcpSocket, Flow]], str]]:
    """Return the connections of an engine that may carry KV caches, and why they may be another's.

    Those of another user's process: by its user, if it is the user's only engine, else by the ports on which
    engines listen.
    """
    if isinstance(compared.flows, Unknown):
        return compared.flows
    if (why := compared.after.unread.get(engine.pid)) is not None:
        return why
    may_carry = [
        (each, flow)
        for each, flow in compared.flows
        if each.local_port != engine.api_port and each.remote_port not in _WEB_PORTS
    ]
    unread = Unknown(Reason.TIMED_OUT, f"/proc/{engine.pid}/fd", "not read yet")
    found = compared.after.inodes.get(engine.pid, unread)
    if not isinstance(found, Unknown):
        mine = set(found)
        return [row for row in may_carry if row[0].inode in mine], ""
    if isinstance(engine.uid, Unknown) or found.reason is not Reason.NEEDS_ROOT:
        return found
    of_user = [row for row in may_carry if row[0].uid == engine.uid]
    is_only = engine.uid != 0 and sum(other.uid == engine.uid for other in compared.engines) == 1
    if not is_only:
        of_user = [row for row in of_user if {row[0].local_port, row[0].remote_port} & engine.ports]
    if not of_user:
        return found
    return of_user, "Its connections are those of its user: only root can see which process has them."


def _peers(ends: Iterable[tuple[str, bool, Flow]]) -> tuple[TransferPeer, ...]:
    flows = grouped(((remote, is_inside), flow) for remote, is_inside, flow in ends)
    by_peer = {peer: total_of(each) for peer, each in flows.items()}
    busiest = sorted(by_peer.items(), key=lambda item: (-item[1].total, item[0]))
    return tuple(
        TransferPeer(address, inside, gbps(flow.sent), gbps(flow.received))
        for (address, inside), flow in busiest[:_MOST_PEERS]
        if flow.total >= MOVES
    )


def gbps(bytes_a_second: float) -> float:
    """Return Gb/s, without the digits that change each time."""
    return round(bytes_a_second * 8e-9, 2)


def total_of(flows: Iterable[Flow]) -> Flow:
    """Return the sum."""
    sent = received = 0.0
    for flow in flows:
        sent, received = sent + flow.sent, received + flow.received
    return Flow(sent, received)


def _total(flows: Collection[Maybe[Flow]]) -> Maybe[Flow]:
    unread = next((flow for flow in flows if isinstance(flow, Unknown)), None)
    return total_of(known(flow, NOTHING) for flow in flows) if unread is None else unread


def _nvlink(reading: Reading, gpus: Sequence[str]) -> Maybe[Flow]:
    """Return the flow over NVLink of these GPUs; a GPU without NVLink has none."""
    if isinstance(reading.gpus, Unknown):
        return reading.gpus
    flows: list[Maybe[Flow]] = []
    for gpu in gpus:
        live = reading.gpus.get(gpu)
        if live is not None:
            flows.append(_flow_of(live.nvlink_tx_bytes_per_second, live.nvlink_rx_bytes_per_second))
    absent = (Reason.NOT_THERE, Reason.NOT_RECORDED)
    return _total([flow for flow in flows if not isinstance(flow, Unknown) or flow.reason not in absent])


def _flow_of(sent: Maybe[float], received: Maybe[float]) -> Maybe[Flow]:
    if isinstance(sent, Unknown):
        return sent
    return received if isinstance(received, Unknown) else Flow(sent, received)


def _is_peer_copy(reading: Reading, engine: Engine, engines: Sequence[Engine]) -> bool:
    """Return whether a GPU of the engine and one of another exchange over PCIe, in one of both directions."""
    live = known(reading.gpus, {})
    others = [gpu for other in engines if other.pid != engine.pid for gpu in other.gpus]
    return any(
        _are_one(_pcie(live.get(mine)), _pcie(live.get(theirs)))
        for mine in engine.gpus
        for theirs in others
        if mine != theirs
    )


def _pcie(live: NvmlLive | None) -> Flow:
    if live is None:
        return NOTHING
    return known(_flow_of(live.pcie_tx_bytes_per_second, live.pcie_rx_bytes_per_second), NOTHING)


def _are_one(mine: Flow, theirs: Flow) -> bool:
    pairs = ((mine.sent, theirs.received), (mine.received, theirs.sent))
    return any(min(pair) >= MUCH and max(pair) <= _ALONE * min(pair) for pair in pairs)


def users_of_nics(devices: Mapping[int, tuple[str, ...]]) -> Mapping[str, frozenset[int]]:
    """Return the pids that have each device open."""
    users: dict[str, set[int]] = {}
    for pid, opened in devices.items():
        for device in opened:
            users.setdefault(device, set()).add(pid)
    return {device: frozenset(pids) for device, pids in users.items()}
