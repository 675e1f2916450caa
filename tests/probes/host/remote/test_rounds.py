"""How many rounds of questions a node's RDMA resources need: on a real node, each device has five lists."""

from collections.abc import Callable
from typing import Any

import pytest

from probes.base.unknown import Reason, Unknown
from probes.host.machine.rdma_netlink import Command
from probes.host.rdma_resources import RdmaResources
from probes.host.remote import collector
from probes.host.remote.remote_host import Answers, BatchHost, pack_questions
from probes.host.remote.transport import pack
from tests.support import rdma_messages as m
from tests.support.connections import connected

DEVICES = 16


def kernel(question: list[Any]) -> object:
    """Answer as the collector does where the kernel lists 16 devices, each with a queue pair."""
    kind, _, content = question
    assert kind == "netlink"
    command = int.from_bytes(content[4:6].encode("latin-1"), "little") & 0x3FF
    datagrams = [m.done(1)]
    if command == Command.GET:
        datagrams.insert(0, b"".join(m.device(1, at, f"mlx5_{at}") for at in range(DEVICES)))
    if command == Command.RES_QP_GET:
        datagrams.insert(0, m.objects(10, 19, 1, [m.queue_pair(300)]))
    if command == Command.SYS_GET:
        datagrams = [m.message(5 << 10 | 6, 1, m.u8(66, 1), 0)]
    return {"value": [[datagram.decode("latin-1"), False] for datagram in datagrams]}


def old_kernel(question: list[Any]) -> object:
    """Answer where netlink fails, and `rdma` lists a queue pair."""
    if question[0] == "netlink":
        return {"errno": 5, "detail": "Input/output error"}
    text = '[{"ifname":"mlx5_0","lqpn":300,"type":"RC","state":"RTS"}]' if "qp" in question else "[]"
    return {"value": [0, text, "", 0]}


@pytest.mark.parametrize(
    ("answer", "rounds", "pairs"), [(kernel, 2, DEVICES), (old_kernel, 2, 1)], ids=["netlink", "rdma(8)"]
)
def test_the_lists_of_all_devices_are_asked_together(
    answer: Callable[[list[Any]], object], rounds: int, pairs: int
) -> None:
    found = asked_in(rounds, answer, BatchHost.rdma_resources)
    assert isinstance(found, RdmaResources)
    assert len(found.queue_pairs) == pairs


def asked_in(
    rounds: int, answer: Callable[[list[Any]], object], question: Callable[[BatchHost], object]
) -> object:
    """Return what a host answers in at most so many rounds."""
    answers = Answers("node")
    while True:
        host = BatchHost(answers)
        found = question(host)
        if not host.missing:
            return found
        asked = [list(question) for question in host.missing]
        answers.asked.append(pack_questions(asked))
        replies = [answer(question) for question in asked]
        answers.lines.append(pack({"answers": replies, "monotonic": 5.0, "wall": 5.0}).strip())
        assert len(answers.asked) <= rounds


def sockets_of_this_machine(question: list[Any]) -> object:
    """Answer as the collector does, where tcp_diag is loaded."""
    if question[0] == "names":
        return {"value": ["refcnt"]}
    return collector.answer(question)


def test_the_connections_of_a_node_that_is_elsewhere() -> None:
    """The collector asks the kernel of this machine."""
    ours, theirs = connected(3 << 20)
    with ours, theirs:
        found = asked_in(3, sockets_of_this_machine, BatchHost.tcp_sockets)
        if isinstance(found, Unknown):
            pytest.skip(str(found))
        assert isinstance(found, tuple)
        port = theirs.getsockname()[1]
        assert [each.bytes_acked >> 20 for each in found if each.remote_port == port] == [3]


def test_the_error_correction_of_a_node_that_is_elsewhere() -> None:
    """The collector asks the kernel of this machine, which lists its families of netlink first."""
    found = asked_in(3, collector.answer, lambda host: host.fec_states(["lo"]))
    assert isinstance(found, dict)
    assert isinstance(found["lo"], Unknown)
    assert found["lo"].reason is Reason.NOT_THERE


def test_no_module_is_loaded_on_a_node_that_is_elsewhere() -> None:
    def without(question: list[Any]) -> object:
        assert question[0] != "netlink"
        return (
            {"value": 10} if question == ["size", "/proc/modules"] else {"errno": 2, "detail": "no such file"}
        )

    found = asked_in(3, without, BatchHost.tcp_sockets)
    assert isinstance(found, Unknown)
    assert found.detail == "tcp_diag is not loaded"
