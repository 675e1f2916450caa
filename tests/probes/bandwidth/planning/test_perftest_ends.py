"""The peer's end of a test: taken for a node like this one, and only what is known of it is said."""

from dataclasses import replace

import pytest

from probes.bandwidth.model.planned_series import PlannedTest
from probes.bandwidth.model.request import MemoryPath, Mode, Request
from tests.probes.bandwidth.planning.test_series import refused
from tests.support.bandwidth_nodes import lacking, node, only

SETUPS = {Mode.SERVER: "", Mode.CLIENT: "node2", Mode.BOTH_ENDS: "root@node2"}


def wish(setup: Mode, far_nic: str | None) -> Request:
    return Request(setup=setup, peer=SETUPS[setup], far_nic=far_nic)


def at_peer(test: PlannedTest) -> str:
    """The command of the peer's end."""
    if test.for_peer:
        return " ".join(test.for_peer)
    (end,) = (process for process in test.processes if process.host)
    return end.command.argv[-1]


def here(test: PlannedTest) -> str:
    (end,) = (process for process in test.processes if not process.host)
    return " ".join(end.command.argv)


@pytest.mark.parametrize("setup", SETUPS)
def test_the_peers_nic_has_its_own_gpu_and_numa_node(setup: Mode) -> None:
    test = only(wish(setup, "mlx5_7"))
    over = only(Request(far_nic="mlx5_7"))
    assert over.far is not None
    assert over.far.gpu is not None
    peer = at_peer(test)
    assert "-d mlx5_7 " in peer
    assert "--membind=1" in peer
    assert f"--use_cuda_bus_id={over.far.gpu.bdf}" in peer
    assert "--membind=0" in here(test)
    assert "--use_cuda_bus_id=0000:18:00.0" in here(test)
    assert test.title == over.title
    assert test.notes == ()


@pytest.mark.parametrize("setup", SETUPS)
def test_what_only_the_peer_uses_is_not_taken_for_something_here(setup: Mode) -> None:
    test = only(wish(setup, "mlx5_7"))
    assert test.far is None
    assert not test.pair.far_nic or test.pair.peer


@pytest.mark.parametrize("setup", SETUPS)
def test_the_peers_parts_limit_it_too(setup: Mode) -> None:
    names = [bound.name for bound in only(wish(setup, "mlx5_7")).limit.bounds]
    assert "port 1 of mlx5_0" in names
    assert "port 1 of mlx5_7 on the peer" in names
    assert "port 1 of mlx5_7" not in names
    assert not [bound for bound in only(wish(setup, None)).limit.bounds if "on the peer" in bound.name]


def test_the_slower_end_is_the_limit() -> None:
    request = replace(wish(Mode.CLIENT, "mlx5_2"), memory=MemoryPath.HOST, nic="mlx5_0")
    least = only(request, node("hgx-h100+half-rate")).limit.least
    assert least is not None
    assert (least.name, least.nominal_gbps) == ("port 1 of mlx5_2 on the peer", 200.0)


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize(
    ("name", "on", "told"),
    [
        (
            "rocep1s0",
            "hgx-h100",
            "there is no RDMA device rocep1s0 here: the peer's rocep1s0 gets the port, GID",
        ),
        (
            "mlx5_1",
            "hgx-h100+port-down",
            "no port of mlx5_1 is active here: the peer's mlx5_1 gets the port, GID",
        ),
    ],
)
def test_of_a_device_that_nothing_is_known_of_that_is_said(
    setup: Mode, name: str, on: str, told: str
) -> None:
    test = only(wish(setup, name), node(on))
    assert f"-d {name} " in at_peer(test)
    assert at_peer(test).count("--use_cuda_bus_id=0000:18:00.0") == 1
    assert test.notes[0].startswith(told)
    assert test.notes[0].endswith("of mlx5_0")
    assert name not in test.title


def test_a_roce_peer_gets_that_ports_gid_index() -> None:
    test = only(replace(wish(Mode.CLIENT, "mlx5_1"), nic="mlx5_0"), node("pcie-l40s"))
    assert " -x " in at_peer(test)


@pytest.mark.parametrize("peer", ["fd00::1", "root@fd00::1"])
@pytest.mark.parametrize("setup", [Mode.CLIENT, Mode.BOTH_ENDS])
def test_a_peers_ipv6_address(setup: Mode, peer: str) -> None:
    test = only(Request(setup=setup, peer=peer))
    assert here(test).endswith(" fd00::1")
    assert "--ipv6-addr" in here(test)
    assert "--ipv6-addr" in at_peer(test)
    told = refused(Request(setup=setup, peer=peer), lacking("hgx-h100", ipv6_addr=False))
    assert "cannot connect to an IPv6 address" in told
    assert "give the peer's IPv4 address, or a name" in told


def test_other_peers_take_no_such_option() -> None:
    for test in (only(wish(Mode.CLIENT, None)), only(wish(Mode.SERVER, None)), only(Request())):
        assert not [end for end in test.processes if "--ipv6-addr" in end.command.argv]
