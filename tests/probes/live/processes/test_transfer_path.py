"""What moves the bytes of an engine: every row of the rule, its near misses, and moved_bytes.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.evidence import Evidence
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.host.nvml import NvmlLive
from probes.host.tcp_sockets import TcpSocket
from probes.live.model.sample import NicUse, PathJudgment, PathWord, Role
from probes.live.model.transfer import Certainty, ServingRole, TransferPath, TransferWord
from probes.live.processes.moved_bytes import (
    ENGINE_PORTS,
    Connections,
    Engine,
    Flow,
    Moved,
    TransferReader,
    moved_by,
    users_of_nics,
)
from probes.live.processes.transfer_path import (
    Setting,
    judge_transfer,
    path_with,
    role_by_traffic,
    with_traffic,
)
from probes.snapshot.rates import PortCounters, Reading
from tests.support.live_node import NO_PEERMEM, LiveNode, Samples, only, resources_of

GB, MB, MIB = 1e9, 1e6, 1 << 20
NO_ROOT = Unknown(Reason.NEEDS_ROOT, "/proc/42/fd")
NO_RATES = Unknown(Reason.NOT_THERE, "counters")
DMABUF = PathJudgment(PathWord.DMABUF, evidence=(Evidence("rdma resource show mr", "40 GiB"),))
LIKELY_DMABUF = replace(DMABUF, is_likely=True, doubt="Root can settle it.")
HOST = PathJudgment(PathWord.HOST_MEMORY)
NONE = PathJudgment(PathWord.NO_NIC)
BY_DMABUF = Setting(DMABUF)
NCCL = Setting(DMABUF, has_nccl=True)
LAST = TransferPath(TransferWord.DMABUF, Certainty.SEEN, evidence=DMABUF.evidence * 4)


def moved(
    rdma: Maybe[float] = 0.0,
    tcp: Maybe[float] = 0.0,
    inside: Maybe[float] = 0.0,
    nvlink: Maybe[float] = 0.0,
    **parts: object,
) -> Moved:
    """What an engine sent, in bytes a second."""
    flows = [each if isinstance(each, Unknown) else Flow(each) for each in (rdma, tcp, inside, nvlink)]
    return replace(Moved(1.0, *flows), **parts)  # type: ignore[arg-type]


CASES = {
    "rdma": (moved(rdma=40 * GB), BY_DMABUF, "RDMA, GPU memory (DMA-BUF)"),
    "rdma-not-proven": (moved(rdma=40 * GB), Setting(LIKELY_DMABUF), "likely RDMA, GPU memory (DMA-BUF)"),
    "peermem": (moved(rdma=40 * GB), Setting(PathJudgment(PathWord.PEERMEM)), "RDMA, GPU memory (peermem)"),
    "staged": (moved(rdma=9 * GB), Setting(HOST), "RDMA, staged through host memory"),
    "memory-unknown": (
        moved(rdma=9 * GB),
        Setting(PathJudgment(PathWord.UNKNOWN, why="needs root")),
        "unknown: over RDMA, from unknown memory (needs root)",
    ),
    "rdma-of-others": (moved(rdma=40 * GB), Setting(NONE), "idle"),  # it has registered nothing
    "nics-of-others-too": (
        moved(rdma=40 * GB, is_shared=True),
        BY_DMABUF,
        "likely RDMA, GPU memory (DMA-BUF)",
    ),
    "nccl-on-the-same-nics": (
        moved(rdma=40 * GB),
        replace(NCCL, spans_nodes=True),
        "likely RDMA, GPU memory (DMA-BUF)",
    ),
    "tcp-unreadable": (moved(40 * GB, NO_ROOT, NO_ROOT), BY_DMABUF, "likely RDMA, GPU memory (DMA-BUF)"),
    "tcp": (moved(tcp=2 * GB), BY_DMABUF, "TCP"),
    "tcp-beside-a-little-rdma": (moved(rdma=3 * GB, tcp=2 * GB), BY_DMABUF, "TCP"),
    "rdma-beside-a-little-tcp": (moved(rdma=5 * GB, tcp=2 * GB), BY_DMABUF, "RDMA, GPU memory (DMA-BUF)"),
    "tcp-beside-the-rdma-of-others": (
        moved(rdma=40 * GB, tcp=2 * GB, is_shared=True),
        BY_DMABUF,
        "unknown: 16.0 Gb/s move over TCP, and other processes share its NICs",
    ),
    "tcp-of-a-user": (moved(tcp=2 * GB, likely_owner="Its user's."), BY_DMABUF, "likely TCP"),
    "tcp-without-rates": (moved(NO_RATES, 2 * GB), BY_DMABUF, "likely TCP"),
    "loopback": (moved(inside=GB), BY_DMABUF, "TCP inside the node"),
    "requests-only": (
        moved(tcp=99 * MB),
        BY_DMABUF,
        "unknown: too little traffic to tell (0.79 Gb/s over TCP)",
    ),
    "ipoib": (moved(rdma=2 * GB, tcp=2 * GB), replace(BY_DMABUF, is_infiniband=True), "TCP"),
    "nvlink": (moved(nvlink=90 * GB, has_neighbor=True), BY_DMABUF, "likely NVLink"),
    "nvlink-alone": (
        moved(nvlink=90 * GB),
        BY_DMABUF,
        "unknown: NVLink is busy, but no other engine is visible on this node",
    ),
    "tensor-parallel-alone": (moved(nvlink=90 * GB), NCCL, "idle"),
    "tensor-parallel-and-rdma": (moved(rdma=9 * GB, nvlink=90 * GB), NCCL, "RDMA, GPU memory (DMA-BUF)"),
    "tensor-parallel-and-a-neighbor": (
        moved(nvlink=90 * GB, has_neighbor=True),
        NCCL,
        "unknown: NVLink is busy, but NCCL uses it for tensor parallelism",
    ),
    "tensor-parallel-and-tcp": (
        moved(inside=GB, nvlink=90 * GB, has_neighbor=True),
        NCCL,
        "likely TCP inside the node",
    ),
    "pcie": (moved(is_peer_copy=True), BY_DMABUF, "likely shared memory or PCIe peer"),
    "idle": (moved(rdma=MIB - 1), BY_DMABUF, "idle"),
    "idle-after": (moved(), replace(BY_DMABUF, last=LAST), "idle; last seen RDMA, GPU memory (DMA-BUF)"),
    "nothing-visible": (
        moved(0.0, NO_ROOT, NO_ROOT),
        BY_DMABUF,
        "unknown: what it moves is not visible (needs root)",
    ),
    "no-counters": (moved(NO_RATES), BY_DMABUF, "unknown: what it moves is not visible (not there)"),
}


@pytest.mark.parametrize("row", CASES)
def test_one_word_an_engine(row: str) -> None:
    found, about, text = CASES[row]
    judged = judge_transfer(found, about)
    assert judged.text == text
    assert judged.tcp_unread == (found.tcp if isinstance(found.tcp, Unknown) else None)
    assert len(judged.evidence) >= 4
    assert (judged.certainty is Certainty.UNKNOWN) == (judged.word is TransferWord.UNKNOWN)
    assert judged.why or judged.word is TransferWord.IDLE


RATES = st.one_of(st.floats(0, 1e12), st.just(NO_RATES))


@given(RATES, RATES, RATES, RATES, st.booleans(), st.booleans(), st.sampled_from([DMABUF, HOST, NONE]))
def test_tcp_is_never_called_rdma_where_it_carries_most(
    rdma: Maybe[float],
    tcp: Maybe[float],
    inside: Maybe[float],
    nvlink: Maybe[float],
    has_nccl: bool,
    is_shared: bool,
    memory: PathJudgment,
) -> None:
    judged = judge_transfer(
        moved(rdma, tcp, inside, nvlink, is_shared=is_shared), Setting(memory, has_nccl=has_nccl)
    )
    most = {name: each for name, each in (("rdma", rdma), ("tcp", tcp)) if isinstance(each, float)}
    if most and max(most, key=lambda name: most[name]) == "tcp" and most.get("rdma", 0.0) < most["tcp"]:
        over_rdma = (TransferWord.DMABUF, TransferWord.STAGED)
        assert judged.word not in over_rdma


# Two readings of a node


def socket(inode: int, sent: int, received: int = 0, remote: str = "192.0.2.8", **parts: int) -> TcpSocket:
    ports = {"local_port": 40000, "remote_port": 40001, "uid": 1000} | parts
    return TcpSocket(
        inode, ports["uid"], "192.0.2.7", ports["local_port"], remote, ports["remote_port"], sent, received
    )


def reading(at: float, octets: int = 0, **gpus: NvmlLive) -> Reading:
    counters = PortCounters(at, octets, 0)
    return Reading(at, {("mlx5_0", 1): counters}, gpus, NO_PEERMEM, {}, {})


def engine(pid: int = 42, group: int = 40, uid: Maybe[int] = 1000, api: int | None = 8000) -> Engine:
    return Engine(pid, uid, ("mlx5_0",), (f"gpu{pid}",), group, api, ENGINE_PORTS)


def compare(
    before: Sequence[TcpSocket],
    after: Sequence[TcpSocket],
    inodes: Mapping[int, Maybe[tuple[int, ...]]],
    *engines: Engine,
    octets: int = 0,
    users: Mapping[int, tuple[str, ...]] | None = None,
) -> dict[int, Moved]:
    first = Connections(reading(10.0), tuple(before), inodes)
    second = Connections(reading(12.0, octets), tuple(after), inodes)
    return moved_by(first, second, engines or (engine(),), users_of_nics(users or {42: ("mlx5_0",)}))


def test_the_bytes_of_its_own_connections_count() -> None:
    before = [socket(1, 100 * MIB), socket(2, 50 * MIB)]
    after = [socket(1, 300 * MIB, 20 * MIB), socket(2, 900 * MIB), socket(3, 8 * MIB)]
    found = compare(before, after, {42: (1, 3)}, octets=4 * MIB)[42]
    assert found.tcp == Flow(104 * MIB, 10 * MIB)  # a second, without the other process's socket
    assert found.rdma == Flow(2 * MIB)
    assert [(peer.address, peer.is_inside) for peer in found.peers] == [("192.0.2.8", False)]


def test_requests_and_downloads_are_no_kv_caches() -> None:
    after = [socket(1, 900 * MIB, local_port=8000), socket(2, 900 * MIB, remote_port=443)]
    assert compare([], after, {42: (1, 2)})[42].tcp == Flow()


@pytest.mark.parametrize("remote", ["127.0.0.1", "192.0.2.7", "::1"])
def test_an_end_on_this_node_is_inside(remote: str) -> None:
    found = compare([], [socket(1, 200 * MIB, remote=remote)], {42: (1,)})[42]
    assert (found.tcp, found.inside) == (Flow(), Flow(100 * MIB))


@pytest.mark.parametrize("remote", ["198.51.100.127", "127.example", "word-7", ""])
def test_an_end_elsewhere_or_without_an_address_is_not_inside(remote: str) -> None:
    assert compare([], [socket(1, 200 * MIB, remote=remote)], {42: (1,)})[42].inside == Flow()


def test_a_new_socket_with_the_number_of_an_old_one_starts_at_zero() -> None:
    found = compare([socket(1, 900 * MIB)], [socket(1, 10 * MIB)], {42: (1,)})[42]
    assert found.tcp == Flow(5 * MIB)


UNREAD = {42: NO_ROOT, 43: NO_ROOT}


@pytest.mark.parametrize(
    ("each", "others", "is_likely"),
    [
        (socket(1, 9 * MIB), (), True),  # its user's only engine
        (socket(1, 9 * MIB), (engine(43),), False),
        (socket(1, 9 * MIB, remote_port=12001), (engine(43),), True),  # Mooncake's port
        (socket(1, 9 * MIB, uid=1001), (), False),
    ],
)
def test_whose_connections_are_likely_without_root(
    each: TcpSocket, others: tuple[Engine, ...], is_likely: bool
) -> None:
    found = compare([], [each], UNREAD, engine(), *others)[42]
    assert bool(found.likely_owner) is is_likely
    assert isinstance(found.tcp, Unknown) is not is_likely


def test_the_connections_of_root_are_nobodys_in_particular() -> None:
    found = compare([], [socket(1, 9 * MIB, uid=0)], UNREAD, engine(uid=0))[42]
    assert found.tcp == NO_ROOT


def test_workers_of_an_engine_share_its_nics_and_others_do_not() -> None:
    users = {42: ("mlx5_0",), 43: ("mlx5_0",)}
    same = compare([], [], {}, engine(), engine(43), octets=GB_OCTETS, users=users)[42]
    assert (same.is_shared, same.is_divided, same.has_neighbor) == (False, True, False)
    other = compare([], [], {}, engine(), engine(43, 41), octets=GB_OCTETS, users=users)[42]
    assert (other.is_shared, other.is_divided, other.has_neighbor) == (True, False, True)
    judged = judge_transfer(replace(same, tcp=Flow(), inside=Flow()), BY_DMABUF)
    assert isinstance(judged.sent_gbps, Unknown)  # the port's rate is that of all workers


GB_OCTETS = 2_000_000_000


def test_what_is_in_another_network_namespace_is_read_there(tmp_path: Path) -> None:
    host = Node(tmp_path)
    host.spaces = {"42": "net:[2]"}
    host.away = Unknown(Reason.NEEDS_ROOT, "/proc/42/ns/net", "in another network namespace")
    assert watch(host).tcp == host.away  # and not idle
    host.away = None
    assert watch(host).tcp == Flow(50 * MIB)


class Node(LiveNode):
    """A node with the connections that a test sets."""

    sockets: Maybe[tuple[TcpSocket, ...]] = ()
    spaces: Mapping[str, str] = {}  # network namespaces by pid
    away: Unknown | None = None  # why those of other namespaces cannot be listed; None: half of each is there

    def tcp_sockets(self) -> Maybe[tuple[TcpSocket, ...]]:
        self.asked["tcp_sockets"] += 1
        return () if self.spaces else self.sockets

    def namespace_sockets(self, pid: int) -> Maybe[tuple[TcpSocket, ...]]:
        halves = (replace(each, bytes_acked=each.bytes_acked // 2) for each in known(self.sockets, ()))
        return tuple(halves) if self.away is None else self.away

    def socket_inodes(self, pids: Sequence[int]) -> Mapping[int, Maybe[tuple[int, ...]]]:
        self.asked["socket_inodes"] += 1
        return dict.fromkeys(pids, (1,))

    def link(self, path: str) -> Maybe[str]:
        if path.endswith("/ns/net"):
            return self.spaces.get(path.split("/")[2], "net:[1]")
        return super().link(path)


def watch(host: Node, reader: TransferReader | None = None, started: float = 10.0) -> Moved:
    reader = reader or TransferReader(lambda: 0.0)
    for at in (started, started + 2):
        host.sockets = (socket(1, int(at * 100 * MIB)),)
        found = reader.read(host, reading(at), [engine()], users_of_nics({42: ("mlx5_0",)}))
    return found[42]


def test_two_readings_show_what_moved(tmp_path: Path) -> None:
    assert watch(Node(tmp_path)).tcp == Flow(100 * MIB)


def test_whose_sockets_are_is_asked_only_for_new_ones(tmp_path: Path) -> None:
    host, reader = Node(tmp_path), TransferReader(lambda: 0.0)
    for started in (10.0, 14.0, 18.0):
        watch(host, reader, started)
    assert host.asked["tcp_sockets"] == 6
    assert host.asked["socket_inodes"] == 1


# What follows from a transfer


def test_the_direction_shows_the_role() -> None:
    sends = moved(tcp=2 * GB)
    judged = judge_transfer(sends, BY_DMABUF)
    assert role_by_traffic(judged, sends) is ServingRole.PREFILL
    receives = replace(sends, tcp=Flow(0, 2 * GB))
    assert role_by_traffic(judge_transfer(receives, BY_DMABUF), receives) is ServingRole.DECODE
    both = replace(sends, tcp=Flow(GB, 2 * GB))
    assert role_by_traffic(judge_transfer(both, BY_DMABUF), both) is None
    others = moved(rdma=40 * GB, is_shared=True)
    assert role_by_traffic(judge_transfer(others, BY_DMABUF), others) is None


PREPARED = PathJudgment(PathWord.UNKNOWN, why="no listed queue pair has a peer")


@pytest.mark.parametrize(
    ("found", "path", "role", "text"),
    [
        (moved(rdma=GB), PREPARED, Role.UCX, "GDR (DMA-BUF)"),
        (moved(rdma=GB), PREPARED, Role.NCCL, "GDR (DMA-BUF)"),
        (moved(tcp=GB), PREPARED, Role.UCX, "TCP"),
        (moved(tcp=GB), DMABUF, Role.OTHER, "TCP"),  # connected, and not what carries the bytes
        (moved(tcp=GB), PREPARED, Role.NCCL, PREPARED.text),  # a TCP of the engine, not of NCCL
        (moved(), PREPARED, Role.UCX, PREPARED.text),
        (moved(rdma=GB), LIKELY_DMABUF, Role.UCX, LIKELY_DMABUF.text),
    ],
)
def test_what_moves_decides_the_path(found: Moved, path: PathJudgment, role: Role, text: str) -> None:
    assert path_with(path, judge_transfer(found, BY_DMABUF), role).text == text


def test_the_nics_that_carry_the_bytes_are_in_use() -> None:
    nics = (
        NicUse("mlx5_0", 2, 0, 1, MIB, 2),
        NicUse("mlx5_1", 2, 0, 1, MIB, 2),
        NicUse("mlx5_2", 2, 0, 0, 0, 2),
    )
    judged = judge_transfer(moved(rdma=GB, nics=("mlx5_0", "mlx5_2")), BY_DMABUF)
    assert [nic.is_used for nic in with_traffic(nics, judged)] == [True, False, False]
    still = judge_transfer(moved(), replace(BY_DMABUF, last=judged))
    assert [nic.is_used for nic in with_traffic(nics, still)] == [True, False, False]
    assert with_traffic(nics, judge_transfer(moved(tcp=GB), BY_DMABUF)) == nics


# A node with and without an engine

PLUGIN = "7f00-7f01 r-xp 00000000 00:00 1 /usr/lib/libplugin_UCX.so\n"


def node_with_process(tmp_path: Path, libraries: str) -> tuple[Node, Samples]:
    host = Node(tmp_path)
    host.add_process(42, libraries=libraries, parent=40)
    host.threads = {42: ("async", "python3")}
    host.resources = replace(resources_of((42, (64 * MIB,))), queue_pairs=())
    return host, Samples(host)


def test_without_an_engine_no_connection_is_read(tmp_path: Path) -> None:
    host, samples = node_with_process(tmp_path, "")
    for _ in range(5):
        process = only(samples.next())
    assert (process.serving, process.transfer) == (None, None)
    assert not [question for question in host.asked if "socket" in question]


def test_an_engine_has_its_path_after_two_readings_and_keeps_the_last_one(tmp_path: Path) -> None:
    host, samples = node_with_process(tmp_path, PLUGIN)
    shown = []
    for sent in (100, 400, 700, 1000, 1300, 1300, 1300, 1300):
        host.sockets = (socket(1, sent * MIB),)
        process = only(samples.next())
        assert process.serving is not None
        shown.append(None if process.transfer is None else process.transfer.text)
    assert shown[0] is None
    assert shown[1] == shown[4] == "TCP"
    assert shown[-1] == "idle; last seen TCP"
    assert process.path.word is PathWord.TCP
    assert process.serving.text == "NIXL over UCX, likely prefill"
    assert process.transfer is not None
    assert process.transfer.readings >= 2


def test_an_engine_over_rdma_uses_the_nics_that_carry_its_bytes(tmp_path: Path) -> None:
    host, samples = node_with_process(tmp_path, PLUGIN)
    host.gpus = {"0000:1b:00.0": (42,)}
    process = only(samples.next())
    assert process.ready_nics == ()
    assert process.path.word is PathWord.UNKNOWN
    octets = iter(range(0, 100 * GB_OCTETS, GB_OCTETS))
    counted = samples.reading
    samples.reading = lambda: replace(  # type: ignore[method-assign]
        counted(), ports={("mlx5_0", 1): PortCounters(samples.now, next(octets), 0)}
    )
    for _ in range(4):
        process = only(samples.next())
    assert process.transfer is not None
    assert process.transfer.text == "likely RDMA, GPU memory (DMA-BUF)"
    assert process.transfer.why  # root can settle it
    assert process.path.text == "likely GDR (DMA-BUF)"
    assert process.ready_nics == ("mlx5_0",)
