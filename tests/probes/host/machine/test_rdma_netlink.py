"""RDMA resources from netlink, from a kernel that is made of bytes, and from the `rdma` command."""

import errno
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.host import rdma_resources
from probes.host.machine.local import LocalHost
from probes.host.machine.rdma_netlink import (
    Answer,
    Command,
    ResourceParser,
    devices_of,
    request,
    shares_namespaces,
    statistics_of,
)
from probes.host.machine.rdma_reader import (
    COMMAND_KINDS,
    ResourceReader,
    parse_resources,
    resources_from_command,
)
from probes.host.protocol import CommandOutput
from probes.host.rdma_resources import (
    CompletionQueue,
    MemoryRegion,
    PacketNumbers,
    ProtectionDomain,
    QueuePair,
    RdmaContext,
    RdmaResources,
)
from tests.support import rdma_messages as m
from tests.support.machines import DIRECTORY

LIVE = DIRECTORY / "live" / "rdma"
Reply = Callable[[int], list[bytes]]


class FakeKernel:
    """Stands for a socket: answers requests by command, for each device."""

    def __init__(self, replies: dict[int, Reply], devices: tuple[str, ...] = ("mlx5_0",)) -> None:
        self.replies = replies
        self.devices = devices
        self.asked: list[int] = []
        self.queue: list[tuple[bytes, int, int]] = []  # datagram, flags, sender
        self.closed = False

    def __call__(self, *_: object) -> "FakeKernel":
        return self

    def sendto(self, content: bytes, address: tuple[int, int]) -> None:
        command = int.from_bytes(content[4:6], "little") & 0x3FF
        sequence = int.from_bytes(content[8:12], "little")
        self.asked.append(command)
        if command == Command.GET:
            listed = b"".join(m.device(sequence, at, name) for at, name in enumerate(self.devices))
            self.queue = [(listed, 0, 0), (m.done(sequence), 0, 0)]
            return
        reply = self.replies.get(command)
        datagrams = [m.done(sequence)] if reply is None else reply(sequence)
        self.queue = [(datagram, 0, 0) for datagram in datagrams]

    def __enter__(self) -> "FakeKernel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def settimeout(self, seconds: float) -> None:
        assert seconds > 0

    def recvmsg(self, size: int) -> tuple[bytes, list[object], int, tuple[int, int]]:
        if not self.queue:
            raise TimeoutError
        datagram, flags, sender = self.queue.pop(0)
        return datagram, [], flags, (sender, 0)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    fake = FakeKernel(dict(BUSY))
    monkeypatch.setattr(socket, "socket", fake)
    return fake


def table(command: int, kind: int, *entries: bytes, flags: int = 2) -> Reply:
    return lambda sequence: [m.objects(command, kind, sequence, list(entries), flags) + m.done(sequence)]


BUSY: dict[int, Reply] = {
    Command.RES_QP_GET: table(
        10, 19, m.queue_pair(1, 1, 3, None, "ib_core"), m.queue_pair(300), m.queue_pair(301, 255, 6, None)
    ),
    Command.RES_MR_GET: table(
        13, 40, m.region(7, 1 << 22), m.region(8, (1 << 64) - 1, odp="implicit"), m.region(9, 0, None)
    ),
    Command.RES_PD_GET: table(14, 46, m.domain(0, None, None, "ib_core"), m.domain(3, 5)),
    Command.RES_CTX_GET: table(22, 86, b"", m.context(5)),
    Command.RES_CQ_GET: table(12, 35, m.completion_queue(2, 5)),
    Command.SYS_GET: lambda sequence: [m.message(5 << 10 | 6, sequence, m.u8(66, 1) + m.u8(92, 1), 0)],
}


def read() -> RdmaResources:
    found = ResourceReader().read()
    assert isinstance(found, RdmaResources)
    return found


def test_everything_that_the_kernel_tracks(kernel: FakeKernel) -> None:
    assert read() == RdmaResources(
        (
            QueuePair("mlx5_0", 1, "GSI", "RTS", 1, 99, 3, None, "ib_core"),
            QueuePair("mlx5_0", 300, "RC", "RTS", 1, 99, 3, 4711),
            QueuePair("mlx5_0", 301, "DRIVER", "ERR", 1, 99, 3),
        ),
        (
            MemoryRegion("mlx5_0", 7, 1 << 22, 3, 4711),
            MemoryRegion("mlx5_0", 8, (1 << 64) - 1, 3, 4711, is_odp=True),
            MemoryRegion("mlx5_0", 9, 0, 3),
        ),
        (ProtectionDomain("mlx5_0", 0, None, None, "ib_core"), ProtectionDomain("mlx5_0", 3, 5, 4711)),
        (RdmaContext("mlx5_0", 5, 4711),),
        (CompletionQueue("mlx5_0", 2, 5, 4711),),
        shares_namespaces=True,
    )
    assert kernel.closed


def test_packet_numbers_are_those_of_connected_queue_pairs_of_processes(kernel: FakeKernel) -> None:
    """24-bit numbers of the next packet to send and of the next one expected."""
    pairs = [m.queue_pair(256), m.queue_pair(257, state=1), m.queue_pair(1, kind=1, pid=None, name="ib_core")]
    kernel.replies[Command.RES_QP_GET] = lambda sequence: [
        m.objects(Command.RES_QP_GET, 19, sequence, pairs) + m.done(sequence)
    ]
    assert ResourceReader().read_packets() == (PacketNumbers("mlx5_0", 256, 6, 5, 4711),)
    kernel.replies[Command.RES_QP_GET] = lambda sequence: [m.refused(sequence, errno.EPERM)]
    refused = ResourceReader().read_packets()
    assert isinstance(refused, Unknown)
    assert refused.reason is Reason.NEEDS_ROOT


def test_statistics_of_ports_are_those_of_their_hw_counters(kernel: FakeKernel) -> None:
    kernel.devices = ("mlx5_0", "bnxt_re0")
    counts = {"tx_bytes": 1 << 50, "rx_bytes": 7, "RNR sent": 0}
    kernel.replies[Command.STAT_GET] = lambda sequence: [m.statistics(sequence, counts)]
    found = ResourceReader().read_statistics(["bnxt_re0/1", "bnxt_re1/1", "bnxt_re0/x"])
    assert found["bnxt_re0/1"] == counts
    for name in ("bnxt_re1/1", "bnxt_re0/x"):  # none of this namespace
        absent = found[name]
        assert isinstance(absent, Unknown)
        assert absent.reason is Reason.NOT_THERE
    assert kernel.asked == [Command.GET, Command.STAT_GET]
    assert kernel.closed


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_driver_or_a_kernel_without_statistics(kernel: FakeKernel, number: int) -> None:
    kernel.replies[Command.STAT_GET] = lambda sequence: [m.refused(sequence, number)]
    found = ResourceReader().read_statistics(["mlx5_0/1"])["mlx5_0/1"]
    assert isinstance(found, Unknown)
    assert (found.reason, found.detail) == (Reason.NOT_THERE, "the kernel has no statistics of this port")
    kernel.replies[Command.STAT_GET] = lambda sequence: [m.refused(sequence, errno.EPERM)]
    refused = ResourceReader().read_statistics(["mlx5_0/1"])["mlx5_0/1"]
    assert isinstance(refused, Unknown)
    assert refused.reason is Reason.NEEDS_ROOT


def test_each_round_shows_what_changed(kernel: FakeKernel) -> None:
    reader = ResourceReader()
    before = reader.read()
    assert reader.read() == before
    kernel.replies[Command.RES_MR_GET] = table(13, 40, m.region(7, 1 << 20))
    after = reader.read()
    assert isinstance(before, RdmaResources)
    assert isinstance(after, RdmaResources)
    assert after.queue_pairs == before.queue_pairs
    assert [region.length_bytes for region in after.regions] == [1 << 20]
    kernel.devices = ()
    assert reader.read() == RdmaResources(shares_namespaces=True)


def test_an_old_kernel_reports_no_contexts_and_no_namespace_mode(kernel: FakeKernel) -> None:
    for command in (Command.RES_CTX_GET, Command.SYS_GET):
        kernel.replies[command] = lambda sequence: [m.refused(sequence, errno.EINVAL)]
    found = read()
    assert found.contexts == ()
    assert found.shares_namespaces is None
    assert len(found.queue_pairs) == 3


def test_a_device_that_gives_an_error_does_not_hide_the_others(kernel: FakeKernel) -> None:
    kernel.devices = ("mlx5_0", "mlx5_1")
    turns: Iterator[Reply] = iter([BUSY[Command.RES_QP_GET], lambda sequence: [m.done(sequence, errno.EIO)]])
    kernel.replies[Command.RES_QP_GET] = lambda sequence: next(turns)(sequence)
    found = read()
    assert found.unread == ("mlx5_1",)
    assert (
        {pair.device for pair in found.queue_pairs}
        == {region.device for region in found.regions}
        == {"mlx5_0"}
    )


def test_a_list_that_changed_meanwhile_is_read_once_more(kernel: FakeKernel) -> None:
    interrupted = table(13, 40, m.region(7, 4096), flags=0x12)
    turns = iter([interrupted, BUSY[Command.RES_MR_GET]])
    kernel.replies[Command.RES_MR_GET] = lambda sequence: next(turns)(sequence)
    assert len(read().regions) == 3
    assert kernel.asked.count(Command.RES_MR_GET) == 2
    kernel.replies[Command.RES_MR_GET] = interrupted
    assert isinstance(ResourceReader().read(), Unknown)  # the only device


def test_messages_of_others_are_ignored(kernel: FakeKernel) -> None:
    ask = kernel.sendto

    def send(content: bytes, address: tuple[int, int]) -> None:
        ask(content, address)
        sequence = int.from_bytes(content[8:12], "little")
        forged = m.objects(10, 19, sequence, [m.queue_pair(666)])
        late = m.objects(10, 19, sequence + 40, [m.queue_pair(667)])
        kernel.queue[:0] = [(forged, 0, 4242), (late, 0, 0)]

    kernel.sendto = send  # type: ignore[method-assign]
    assert {pair.number for pair in read().queue_pairs} == {1, 300, 301}


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EPERM, Reason.NEEDS_ROOT),
        (errno.EPROTONOSUPPORT, Reason.NOT_THERE),
        (errno.ENOENT, Reason.NOT_THERE),
        (errno.EIO, Reason.DRIVER_ERROR),
    ],
)
def test_why_there_is_no_answer(number: int, reason: Reason, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr(socket, "socket", refuse)
    found = ResourceReader().read()
    assert isinstance(found, Unknown)
    assert found.reason is reason


def test_a_kernel_that_does_not_answer(kernel: FakeKernel) -> None:
    kernel.replies[Command.RES_QP_GET] = lambda _: []
    found = ResourceReader().read()
    assert isinstance(found, Unknown)
    assert found.reason is Reason.TIMED_OUT
    assert kernel.closed


def test_a_kernel_that_waits_for_a_dead_nic_does_not_stop_gdrtop(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    ask = kernel.recvmsg

    def wait(size: int) -> tuple[bytes, list[object], int, tuple[int, int]]:
        answers.wait()
        return ask(size)

    monkeypatch.setattr("probes.host.machine.local.RDMA_CLASS", "/")
    monkeypatch.setattr("probes.host.machine.rdma_reader.SECONDS", 0.02)
    monkeypatch.setattr(ResourceReader.read, "__defaults__", (60.0, None))
    monkeypatch.setattr(kernel, "recvmsg", wait)
    host = LocalHost()
    for _ in range(2):  # the second question waits for the same answer
        found = host.rdma_resources()
        assert isinstance(found, Unknown)
        assert found.reason is Reason.TIMED_OUT
    assert kernel.asked == [Command.GET]
    monkeypatch.setattr("probes.host.machine.rdma_reader.SECONDS", 60.0)
    answers.set()
    assert isinstance(host.rdma_resources(), RdmaResources)


def test_without_ib_core_no_socket_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening it would load ib_core."""
    monkeypatch.setattr("probes.host.machine.local.RDMA_CLASS", "/nosuch")
    monkeypatch.setattr(socket, "socket", pytest.fail)
    found = LocalHost().rdma_resources()
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NOT_THERE


def test_a_refused_socket_leaves_the_rdma_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "refused")

    def run(argv: tuple[str, ...], seconds: float) -> Maybe[CommandOutput]:
        text = (
            '[{"ifindex":0,"ifname":"mlx5_0","lqpn":5,"type":"RC","state":"RTS"}]' if "qp" in argv else "[]"
        )
        return CommandOutput(argv, 0, "netns exclusive" if "system" in argv else text, "")

    host = LocalHost()
    monkeypatch.setattr("probes.host.machine.local.RDMA_CLASS", "/")
    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(host, "run", run)
    found = host.rdma_resources()
    assert isinstance(found, RdmaResources)
    assert [pair.number for pair in found.queue_pairs] == [5]
    assert found.shares_namespaces is False
    monkeypatch.setattr(host, "run", lambda argv, seconds: Unknown(Reason.NOT_THERE, "rdma"))
    for is_root, reason in ((False, Reason.NEEDS_ROOT), (True, Reason.IO_ERROR)):
        monkeypatch.setattr(host, "_is_root", is_root)
        denied = host.rdma_resources()
        assert isinstance(denied, Unknown)
        assert denied.reason is reason


def test_a_tree_has_no_netlink(tmp_path: Path) -> None:
    found = LocalHost(str(tmp_path)).rdma_resources()
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NOT_THERE


# Bytes and JSON that no kernel sends


def test_more_objects_than_gdrtop_keeps_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_resources, "MAX_OBJECTS", 2)
    answer = Answer(1)
    answer.add(m.objects(10, 19, 1, [m.queue_pair(number) for number in range(5)]))
    found = ResourceParser().parse({(Command.RES_QP_GET, "mlx5_0"): answer}, None, ())
    assert (len(found.queue_pairs), found.left_out) == (2, 3)


def test_requests_are_those_of_the_rdma_command() -> None:
    assert request(Command.GET, 1).hex() == "10000000011401030100000000000000"
    port = "0800010005000000" + "0800030001000000"
    assert request(Command.STAT_GET, 2, 5, 1).hex() == "20000000111401000200000000000000" + port
    assert request(Command.RES_MR_GET, 2, 5).hex() == "180000000d1401030200000000000000" + "0800010005000000"


GENUINE = b"".join(reply(1)[0] for reply in BUSY.values()) + m.device(1, 0, "mlx5_0")
GENUINE += m.statistics(1, {"tx_bytes": 5})


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    content = bytearray(GENUINE)
    for _ in range(draw(st.integers(0, 8))):
        content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    return bytes(content[: draw(st.integers(0, len(content)))])


@given(st.one_of(st.binary(max_size=400), damaged()))
def test_any_bytes_give_an_answer(content: bytes) -> None:
    answer = Answer(1)
    answer.add(content)
    others = (Command.GET, Command.SYS_GET, Command.STAT_GET)
    commands = [command for command in Command if command not in others]
    assert all(name.isprintable() for name in statistics_of(answer))
    answers = {(command, "mlx5_0"): answer for command in commands}
    found = ResourceParser().parse(answers, shares_namespaces(answer), ())
    assert answer.errno < 4096
    numbers = [pair.number for pair in found.queue_pairs] + [region.number for region in found.regions]
    assert all(0 <= number < 1 << 64 for number in numbers)
    assert all(domain.kernel_name.isprintable() for domain in found.domains)
    assert all(name.isprintable() for _, name in devices_of(answer))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["ifname", "lqpn", "mrn", "mrlen", "pdn", "ctxn", "comm", "pid"]), inner
        )
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(
    st.dictionaries(st.sampled_from(COMMAND_KINDS), st.one_of(st.text(max_size=60), _JSON.map(json.dumps)))
)
def test_any_output_of_the_command_gives_an_answer(texts: dict[str, str]) -> None:
    found = parse_resources(texts, "netns")
    assert isinstance(found, Unknown) or all(domain.device.isprintable() for domain in found.domains)


def test_a_failing_command_has_a_reason() -> None:
    def fail(argv: Any, seconds: float) -> Maybe[CommandOutput]:
        return CommandOutput(tuple(argv), 1, "", "error: Operation not supported")

    found = resources_from_command(fail)
    assert isinstance(found, Unknown)
    assert found.reason is Reason.DRIVER_ERROR


def test_output_of_a_real_node() -> None:
    if not LIVE.is_dir():
        pytest.skip("the output of a node with rdma_rxe is not here")
    names = {"qp": "qp", "mr": "mr-user", "pd": "pd", "ctx": "ctx"}
    texts = {kind: (LIVE / f"{name}.json").read_text() for kind, name in names.items()}
    found = parse_resources(texts, (LIVE / "system-NOT-JSON.txt").read_text())
    assert isinstance(found, RdmaResources)
    assert found.queue_pairs == (QueuePair("mlx5_0", 1, "GSI", "RTS", 1, kernel_name="ib_core"),)
    assert [(region.number, region.length_bytes, region.pd, region.pid) for region in found.regions] == [
        (0, 33554432, 2, 182),
        (1, 33554432, 1, 180),
    ]
    assert [(domain.number, domain.context, domain.pid, domain.kernel_name) for domain in found.domains] == [
        (0, None, None, "ib_core"),
        (1, 0, 180, ""),
        (2, 1, 182, ""),
    ]
    assert [(context.number, context.pid) for context in found.contexts] == [(0, 180), (1, 182)]
    assert found.shares_namespaces is True
    as_root = parse_resources({"mr": (LIVE / "mr-root.json").read_text()})
    assert isinstance(as_root, RdmaResources)
    assert as_root.regions == found.regions
