"""Interfaces in the order in which NCCL sees them."""

from functools import cache
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.network.routes import Interface, InterfaceFacts, probe
from probes.host.machine.local import LocalHost
from probes.setup.env.recommend import first_choice
from probes.simulation.host import SimulatedHost
from tests.support.trees import write

HEAD = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
ROUTES = f"""{HEAD}eno1\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0
docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
eno1\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0
ib0\t0000640A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
gone\t0000650A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
"""


def test_interfaces_are_in_the_order_of_their_index(tmp_path: Path) -> None:
    write(tmp_path, "/proc/net/route", ROUTES)
    for name, index in (("eno1", 5), ("docker0", 3), ("ib0", 9)):
        write(tmp_path, f"/sys/class/net/{name}/ifindex", f"{index}\n")
    facts = probe(LocalHost(str(tmp_path)))
    assert isinstance(facts, InterfaceFacts)
    assert facts.interfaces == (
        Interface("docker0", 3, ("172.17.0.0/16",)),
        Interface("eno1", 5, ("10.0.0.0/24",)),
        Interface("ib0", 9, ("10.100.0.0/16",)),
    )
    assert first_choice(facts.interfaces) == facts.interfaces[2]  # names that begin with ib come first
    assert first_choice(facts.interfaces[:2]) == facts.interfaces[1]  # docker does not count
    assert first_choice(facts.interfaces[:1]) is None
    bridge = Interface("virbr0", 2, ("192.168.122.0/24",))
    assert first_choice((bridge, *facts.interfaces[:2]), (2, 28, 3)) == facts.interfaces[1]
    assert first_choice((bridge, *facts.interfaces[:2]), (2, 27, 7)) == bridge


def test_without_routes_the_interfaces_are_unknown(tmp_path: Path) -> None:
    facts = probe(LocalHost(str(tmp_path)))
    assert isinstance(facts, Unknown)
    assert facts.reason is Reason.NOT_THERE


@cache
def node() -> SimulatedHost:
    return SimulatedHost("hgx-h100", clock=lambda: 1000.0)


@settings(max_examples=40)
@given(st.text(max_size=200), st.text(max_size=20))
def test_any_route_table_is_read(routes: str, index: str) -> None:
    host = node()
    host.tree.add("/proc/net/route", HEAD + routes + "\n../../x\t0000640A\t00000000\t0001\t0\t0\t0\t0000FFFF")
    host.tree.add("/sys/class/net/eno1/ifindex", index)
    facts = probe(host)
    assert isinstance(facts, InterfaceFacts)
    assert all("/" not in interface.name for interface in facts.interfaces)
