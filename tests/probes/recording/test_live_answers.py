"""What only the live view asks, recorded, replayed and redacted."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.machine.local import LocalHost
from probes.host.nvml import NvmlLive
from probes.host.protocol import MAX_MESSAGES, KernelMessage
from probes.host.rdma_resources import (
    CompletionQueue,
    MemoryRegion,
    ProtectionDomain,
    QueuePair,
    RdmaContext,
    RdmaResources,
)
from probes.host.tcp_sockets import TcpSocket
from probes.recording.format import MAX_JSON_BLOB_BYTES, Question, RecordingError, decode, encode
from probes.recording.recording_host import Moment, RecordingHost
from probes.recording.redaction.identifiers import Identifiers
from probes.recording.replay_host import ReplayHost
from tests.support.recordings import archive_of, read

XID = KernelMessage(7, 5140.9, 4, "NVRM: Xid (PCI:0000:1b:00): 79, pid=4711, GPU has fallen off the bus.")
LINK_DOWN = KernelMessage(8, 5141.0, 6, "mlx5_core 0000:5c:00.0 ens1np0: Link down")
RESOURCES = RdmaResources(
    (
        QueuePair("mlx5_0", 300, "RC", "RTS", 1, 99, 0, 4711),
        QueuePair("mlx5_1", 1, "GSI", "RTS", 1, kernel_name="ib_core"),
        QueuePair("mlx5_0", 301, "DRIVER", "ERR"),
    ),
    (MemoryRegion("mlx5_0", 7, 0, 0, 0), MemoryRegion("mlx5_0", 8, (1 << 64) - 1, 3, 4711, is_odp=True)),
    (ProtectionDomain("mlx5_0", 0, 0, 4711), ProtectionDomain("mlx5_0", 1)),
    (RdmaContext("mlx5_0", 5, 4711),),
    (CompletionQueue("mlx5_0", 2, 5, 4711, ""),),
    shares_namespaces=False,
    left_out=3,
    unread=("mlx5_2",),
    hidden=("mlx5_3",),
)


class LiveNode(LocalHost):
    """A tree with answers to the questions of the live view."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.now = 0.0
        self.messages: list[Maybe[tuple[KernelMessage, ...]]] = []
        self.resources = RESOURCES

    def rdma_resources(self) -> Maybe[RdmaResources]:
        return self.resources

    def thread_names(self, pids: Any) -> Any:
        return dict.fromkeys(pids, ("NCCL Progress 0", "acme-loader", "pt_nccl_watchdg", "python3"))

    def ethtool_counters(self, names: Any) -> Any:
        return {name: {"rx_prio3_pause_duration": 5, "outbound_pci_stalled_rd": 12} for name in names}

    def kernel_messages(self) -> Maybe[tuple[KernelMessage, ...]]:
        return self.messages.pop(0) if self.messages else ()

    def monotonic(self) -> float:
        return self.now


class Recorded:
    """A node that is recorded."""

    def __init__(self, root: Path) -> None:
        self.node = LiveNode(root)
        self.moments: list[Moment] = []
        self.recorder = RecordingHost(self.node, self.moments.append)

    def moment(self, messages: bool = True) -> None:
        self.recorder.rdma_resources()
        self.recorder.thread_names([4711])
        self.recorder.ethtool_counters(["ens1np0"])
        if messages:
            self.recorder.kernel_messages()
        self.node.now += 1.0
        self.recorder.end_moment()

    def replay(self, redact: bool = False) -> ReplayHost:
        identifiers = Identifiers(redact)
        return ReplayHost(read(archive_of([identifiers.apply(moment) for moment in self.moments])))


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def test_a_recording_has_the_same_answers(recorded: Recorded) -> None:
    recorded.moment()
    recorded.moment()
    host = recorded.replay()
    for moment in (0, 1):
        host.seek(moment)
        assert host.rdma_resources() == RESOURCES
        assert host.thread_names([4711]) == recorded.node.thread_names([4711])
        assert host.ethtool_counters(["ens1np0"]) == recorded.node.ethtool_counters(["ens1np0"])
    assert Question("rdma_resources") not in recorded.moments[1].answers
    older = ReplayHost(read(archive_of([Moment(0, 1.0, True, (), {Question("is_root"): True})])))
    for answer in (older.rdma_resources(), older.kernel_messages(), older.thread_names([1])[1]):
        assert isinstance(answer, Unknown)
        assert answer.reason is Reason.NOT_RECORDED


def test_a_message_is_new_in_its_own_moment_only(recorded: Recorded) -> None:
    recorded.node.messages = [(), (XID,), (), (LINK_DOWN,)]
    for number in range(6):
        recorded.moment(messages=number != 4)  # not asked in the fifth
    host = recorded.replay()
    found = []
    for moment in range(6):
        host.seek(moment)
        found.append(host.kernel_messages())
    assert found == [(), (XID,), (), (LINK_DOWN,), (), ()]
    host.seek(1)
    assert host.kernel_messages() == (XID,)


def test_the_same_message_twice_is_recorded_twice(recorded: Recorded) -> None:
    recorded.node.messages = [(XID,), (XID,)]
    recorded.moment()
    recorded.moment()
    host = recorded.replay()
    host.seek(1)
    assert host.kernel_messages() == (XID,)


def test_a_dashboard_that_asks_more_often_loses_no_message(recorded: Recorded) -> None:
    recorded.node.messages = [(XID,), (), (LINK_DOWN,)]
    for _ in range(3):
        recorded.recorder.kernel_messages()
    recorded.moment()
    assert recorded.replay().kernel_messages() == (XID, LINK_DOWN)
    recorded.node.messages = [(XID,) * MAX_MESSAGES] * 2
    recorded.recorder.kernel_messages()
    recorded.moment()
    assert len(recorded.moments[1].answers[Question("kernel_messages")]) == MAX_MESSAGES


def test_a_log_that_cannot_be_read_stays_so(recorded: Recorded) -> None:
    recorded.node.messages = [Unknown(Reason.NEEDS_ROOT, "/dev/kmsg")] * 3
    for _ in range(3):
        recorded.moment()
    host = recorded.replay()
    host.seek(2)
    found = host.kernel_messages()
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NEEDS_ROOT


def test_thousands_of_objects_fit() -> None:
    count = 20000
    many = RdmaResources(
        tuple(
            QueuePair("mlx5_0", number, "RC", "RTS", 1, 5000 + number, 7, 40000) for number in range(count)
        ),
        tuple(MemoryRegion("mlx5_0", number, 4 << 20, 7, 40000) for number in range(count)),
    )
    blob = encode(Question("rdma_resources"), many).blob
    assert len(blob) < MAX_JSON_BLOB_BYTES / 2


# Redaction


def test_what_a_redacted_recording_keeps(recorded: Recorded) -> None:
    secret = KernelMessage(9, 5142.0, 6, "usb 1-1: SerialNumber: 4C530001")
    named = KernelMessage(10, 5143.0, 4, "mlx5_core 0000:5c:00.0 acmenet0: Link down")
    recorded.node.messages = [(XID, secret, named)]
    mine = QueuePair("acme0", 5, "RC", "RTS", pid=4711)
    recorded.node.resources = RdmaResources((*RESOURCES.queue_pairs, mine), unread=("acme0",))
    recorded.moment()
    host = recorded.replay(redact=True)
    resources = host.rdma_resources()
    assert isinstance(resources, RdmaResources)
    assert resources.queue_pairs[:3] == RESOURCES.queue_pairs
    token = resources.queue_pairs[3].device
    assert token.startswith("redacted-")
    assert resources.unread == (token,)
    assert host.thread_names([4711])[4711] == ("NCCL Progress 0", "program-1", "pt_nccl_watchdg", "python3")
    assert host.ethtool_counters(["ens1np0"]) == recorded.node.ethtool_counters(["ens1np0"])
    messages = host.kernel_messages()
    assert not isinstance(messages, Unknown)
    assert [(message.sequence, message.at, message.priority) for message in messages] == [
        (7, 5140.9, 4),
        (10, 5143.0, 4),
    ]
    assert messages[0].text == XID.text
    assert "acme" not in messages[1].text
    assert messages[1].text.endswith("Link down")


def test_reasons_for_throttling_stay_readable() -> None:
    words = ("power cap", "sync boost", "thermal", "HW thermal", "power brake", "HW slowdown", "board limit")
    lost = Unknown(Reason.NOT_THERE)
    answer = (NvmlLive("0000:1b:00.0", *[lost] * 9, throttle_reasons=words),)
    moment = Moment(0, 1.0, True, (), {Question("nvml_live"): answer})
    assert Identifiers(redact=True).apply(moment).answers[Question("nvml_live")] == answer


SOCKETS = (
    TcpSocket(4242, 1000, "10.20.30.40", 5600, "10.20.30.41", 40001, 1 << 30, 1 << 20),
    TcpSocket(4243, 0, "127.0.0.1", 8000, "127.0.0.1", 40002, 1 << 30, 1 << 20),
    TcpSocket(4244, 1000, "2001:db9::7", 5600, "10.20.30.40", 40003, 1 << 30, 1 << 20),
)


def recorded_sockets(redact: bool) -> tuple[TcpSocket, ...]:
    answers: dict[Question, object] = {
        Question("tcp_sockets"): SOCKETS,
        Question("socket_inodes", ("4711",)): (4242,),
    }
    moment = Identifiers(redact).apply(Moment(0, 1.0, True, (), answers))
    host = ReplayHost(read(archive_of([moment])))
    assert host.socket_inodes([4711]) == {4711: (4242,)}
    found = host.tcp_sockets()
    assert not isinstance(found, Unknown)
    return found


def test_a_recording_has_the_connections() -> None:
    assert recorded_sockets(redact=False) == SOCKETS


def test_a_redacted_recording_hides_addresses_and_users_and_shows_which_are_the_same() -> None:
    found = recorded_sockets(redact=True)
    text = str(found)
    assert not [secret for secret in ("10.20.30", "2001:db9", "1000,") if secret in text]
    assert found[0].local == found[2].remote  # ends of one node stay ends of one node
    assert found[0].remote != found[0].local
    assert found[1] == SOCKETS[1]  # loopback, and root
    figures = [(each.inode, each.local_port, each.remote_port, each.bytes) for each in SOCKETS]
    assert [(each.inode, each.local_port, each.remote_port, each.bytes) for each in found] == figures


# Hostile recordings

KINDS = [
    "tcp_sockets",
    "socket_inodes",
    "rdma_resources",
    "thread_names",
    "ethtool_counters",
    "fec_states",
    "kernel_messages",
]
_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["queue_pairs", "regions", "left_out", "unread", "sequence", "at", "text", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(_VALUES, st.sampled_from(KINDS))
def test_no_json_raises_anything_but_a_recording_error(value: object, kind: str) -> None:
    try:
        decode({"ask": kind, "of": "7", "answer": value})
    except RecordingError:
        return


@pytest.mark.parametrize(
    "tables",
    [
        [["mlx5_0", [[1, "RC"]]]],  # no state
        [["mlx5_0", [["1", "RC", "RTS"]]]],
        [["mlx5_0", [[1, "RC", "RTS", 1, 2, 3, 4, "", "more"]]]],
        [[7, [[1, "RC", "RTS"]]]],
        [["mlx5_0"]],
        [["mlx5_0", {}]],
        [["mlx5_0", [[]] * 70000]],
        {"mlx5_0": []},
    ],
)
def test_malformed_tables_are_refused(tables: object) -> None:
    with pytest.raises(RecordingError):
        decode({"ask": "rdma_resources", "answer": {"queue_pairs": tables}})


def test_text_of_a_recording_is_one_short_line() -> None:
    device, text = "mlx5_0\x1b[2J\n" + "x" * 9999, "NVRM: \n\x1b]0;" + "x" * 9999
    row = [1, "RC\n", "RTS", None, None, None, None, "ib\ncore"]
    answer = decode({"ask": "rdma_resources", "answer": {"queue_pairs": [[device, [row]]]}}).answer
    (pair,) = answer.queue_pairs
    assert all(name.isprintable() and len(name) <= 64 for name in (pair.device, pair.kind, pair.kernel_name))
    message = {"sequence": 1, "at": 1.0, "priority": 4, "text": text}
    (shown,) = decode({"ask": "kernel_messages", "answer": [message]}).answer
    assert shown.text.isprintable()
    assert len(shown.text) <= 512
