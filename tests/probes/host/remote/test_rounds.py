"""How many rounds of questions a node's RDMA resources need: on a real node, each device has five lists."""

from collections.abc import Callable
from typing import Any

import pytest

from probes.host.machine.rdma_netlink import Command
from probes.host.rdma_resources import RdmaResources
from probes.host.remote.remote_host import Answers, BatchHost, pack_questions
from probes.host.remote.transport import pack
from tests.support import rdma_messages as m

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
    answers = Answers("node")
    while True:
        host = BatchHost(answers)
        found = host.rdma_resources()
        if not host.missing:
            break
        asked = [list(question) for question in host.missing]
        answers.asked.append(pack_questions(asked))
        replies = [answer(question) for question in asked]
        answers.lines.append(pack({"answers": replies, "monotonic": 5.0, "wall": 5.0}).strip())
        assert len(answers.asked) <= rounds
    assert isinstance(found, RdmaResources)
    assert len(found.queue_pairs) == pairs
