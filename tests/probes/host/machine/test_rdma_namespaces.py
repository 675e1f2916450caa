"""RDMA devices in other network namespaces, with sockets in place of namespaces."""

import os
import socket
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from probes.host.machine.rdma_namespaces import MOST_NAMESPACES, RdmaNamespaces, can_enter, open_sockets
from probes.host.machine.rdma_netlink import Command
from probes.host.machine.rdma_reader import ResourceReader
from probes.host.rdma_resources import RdmaResources
from tests.probes.host.machine.test_rdma_netlink import BUSY, FakeKernel
from tests.support import rdma_messages as m

EXCLUSIVE = {**BUSY, Command.SYS_GET: lambda sequence: [m.message(5 << 10 | 6, sequence, m.u8(66, 0), 0)]}


class Node:
    """A tree of a node, and the sockets in its namespaces by path."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kernels: dict[str, FakeKernel] = {}
        self.asked: list[tuple[str, ...]] = []
        self.now = 0.0
        self.add_namespace("self", "host")
        self.namespaces = RdmaNamespaces(True, str(root), self.open, lambda: self.now)

    def add_namespace(self, process: str, name: str, *devices: str) -> str:
        target, path = self.root / name, self.root / f"proc/{process}/ns/net"
        target.touch()
        path.parent.mkdir(parents=True)
        path.symlink_to(target)
        if name != "host":
            self.kernels[str(path)] = FakeKernel(dict(EXCLUSIVE), devices)
        return str(path)

    def add_device(self, *names: str) -> None:
        for name in names:
            path = self.root / f"sys/class/infiniband_verbs/uverbs{name[-1]}/ibdev"
            path.parent.mkdir(parents=True)
            path.write_text(f"{name}\n")

    def open(self, paths: Sequence[str], seconds: float) -> Generator[socket.socket | None, None, None]:
        assert seconds > 0
        self.asked.append(tuple(paths))
        for path in paths:
            kernel = self.kernels.get(path)
            if kernel is not None:
                kernel.closed = False
            yield kernel  # type: ignore[misc]

    def read(self, *devices: str) -> RdmaResources:
        """Return the resources; `devices`: those of gdrtop's own namespace."""
        own = FakeKernel(dict(EXCLUSIVE), devices)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "socket", own)
            found = ResourceReader(namespaces=self.namespaces).read()
        assert isinstance(found, RdmaResources)
        return found


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_devices_of_all_namespaces_are_listed(node: Node) -> None:
    node.add_device("mlx5_0", "mlx5_1", "mlx5_2")
    pods = [node.add_namespace("41", "pod1", "mlx5_1"), node.add_namespace("42", "pod2", "mlx5_2")]
    node.add_namespace("43", "pod2", "mlx5_2")  # a second process
    node.add_namespace("44", "host")
    found = node.read("mlx5_0")
    assert {pair.device for pair in found.queue_pairs} == {"mlx5_0", "mlx5_1", "mlx5_2"}
    assert (found.shares_namespaces, found.hidden) == (False, ())
    assert node.asked == [tuple(pods)]
    assert all(node.kernels[pod].closed for pod in pods)


def test_no_namespace_is_entered_while_all_devices_are_listed_here(node: Node) -> None:
    node.add_device("mlx5_0")
    node.add_namespace("41", "pod1")
    assert node.read("mlx5_0").hidden == ()
    assert node.asked == []


def test_without_root_the_hidden_devices_are_named(node: Node) -> None:
    node.add_device("mlx5_0", "mlx5_1")
    node.add_namespace("41", "pod1", "mlx5_1")
    node.namespaces = RdmaNamespaces(False, str(node.root), node.open)
    assert node.read("mlx5_0").hidden == ("mlx5_1",)
    assert node.asked == []


def test_a_child_that_is_late_leaves_what_is_listed_here(node: Node) -> None:
    node.add_device("mlx5_0", "mlx5_1")
    node.add_namespace("41", "pod1", "mlx5_1")

    def late(paths: Sequence[str], seconds: float) -> Generator[socket.socket | None, None, None]:
        raise TimeoutError
        yield

    node.namespaces = RdmaNamespaces(True, str(node.root), late)
    found = node.read("mlx5_0")
    assert {pair.device for pair in found.queue_pairs} == {"mlx5_0"}
    assert found.hidden == ("mlx5_1",)


def test_without_uverbs_devices_the_hidden_ones_are_unknown(node: Node) -> None:
    assert node.read("mlx5_0").hidden is None


def test_packet_numbers_come_from_all_namespaces(node: Node) -> None:
    node.add_device("mlx5_0", "mlx5_1")
    node.add_namespace("41", "pod1", "mlx5_1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "socket", FakeKernel(dict(EXCLUSIVE)))
        found = ResourceReader(namespaces=node.namespaces).read_packets()
    assert isinstance(found, tuple)
    assert {numbers.device for numbers in found} == {"mlx5_0", "mlx5_1"}


def test_the_next_round_enters_only_namespaces_with_devices(node: Node) -> None:
    node.add_device("mlx5_1")
    node.add_namespace("41", "other")
    pod = node.add_namespace("42", "pod", "mlx5_1")
    named = node.root / "run/netns"
    named.mkdir(parents=True)
    (named / "idle").touch()  # ip-netns(8), without a process
    for _ in range(2):
        assert node.read().hidden == ()
        node.now += 1.0
    assert node.asked[1:] == [(pod,)]
    del node.kernels[pod]  # its process has ended
    again = node.add_namespace("40", "pod", "mlx5_1")
    assert node.read().hidden == ()
    assert node.asked[2] == (pod,)
    assert again in node.asked[3]


def test_a_device_that_no_namespace_lists_is_searched_every_ten_seconds(node: Node) -> None:
    node.add_device("mlx5_1")
    for number in range(41, 41 + MOST_NAMESPACES + 1):
        node.add_namespace(str(number), f"pod{number}")
    for _ in range(11):
        assert node.read().hidden == ("mlx5_1",)
        node.now += 1.0
    assert [len(paths) for paths in node.asked] == [MOST_NAMESPACES] * 2


def test_the_child_skips_what_it_cannot_enter() -> None:
    assert list(open_sockets(["/nosuch", "/dev/null"], 30.0)) == [None, None]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may enter a namespace")
def test_the_child_passes_a_socket() -> None:
    """A socket of routes, because a machine without RDMA refuses the other."""
    passed = next(open_sockets(["/proc/self/ns/net"], 30.0, socket.NETLINK_ROUTE))
    if passed is None:
        pytest.skip("not even root may here")
    with passed:
        assert passed.family == socket.AF_NETLINK
        assert not passed.get_inheritable()


@pytest.mark.parametrize(
    ("status", "may"),
    [
        ("Name:\tgdrtop\nCapEff:\t000001ffffffffff\n", True),
        ("Name:\tgdrtop\nCapEff:\t0000000400080002\n", False),  # root in the unit of gdrtop watch
        ("CapEff:\tx\n", False),
        ("\udcff", False),
        ("", False),
    ],
)
def test_without_the_capability_no_namespace_is_entered(tmp_path: Path, status: str, may: bool) -> None:
    file = tmp_path / "status"
    assert not can_enter(str(file))
    file.write_text(status, errors="surrogateescape")
    assert can_enter(str(file)) is may
