"""The switch of each rail is read from LLDP or from the InfiniBand neighbor, and compared between nodes."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.fleet.rails import Leaf, Rail, check_rails, parse_lldp, parse_node_info, read_leaves
from probes.host.protocol import CommandOutput
from probes.simulation.host import SimulatedHost

INFINIBAND = Rail(3, "mlx5_3", 1, None, "", "0000:1a:00.0", "InfiniBand", "ib3", True)
ETHERNET = replace(INFINIBAND, number=0, nic="mlx5_0", link_layer="Ethernet", netdev="eth0")
NODE_INFO = """\
# Node info: DR path slid 65535; dlid 65535; 0,1
BaseVers:........................1
NodeType:........................Switch
NumPorts:........................65
SystemGuid:......................0xfc6a1c0300a1b2c0
Guid:............................0xfc6a1c0300a1b2c0
"""


def neighbor(interface: str, mac: str, name: str = "") -> dict[str, Any]:
    chassis: dict[str, Any] = {"id": {"type": "mac", "value": mac}}
    return {interface: {"via": "LLDP", "chassis": {name: chassis} if name else chassis, "port": {}}}


def lldp(*neighbors: dict[str, Any]) -> str:
    return json.dumps({"lldp": {"interface": list(neighbors) if len(neighbors) > 1 else neighbors[0]}})


class Node(SimulatedHost):
    """Answers both commands as scripted."""

    def __init__(self, answer: Maybe[CommandOutput]) -> None:
        super().__init__("cloud-vm")
        self.answer = answer
        self.asked: list[tuple[str, ...]] = []

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        self.asked.append(tuple(argv))
        return self.answer


def test_lldpd_names_the_switch_of_each_interface() -> None:
    text = lldp(neighbor("eth0", "0c:42:a1:00:00:01", "leaf1"), neighbor("eth1", "0c:42:a1:00:00:02"))
    assert parse_lldp(text) == {"eth0": Leaf("0c:42:a1:00:00:01", "leaf1"), "eth1": Leaf("0c:42:a1:00:00:02")}
    assert parse_lldp(lldp(neighbor("eth0", "a", "leaf1"))) == {"eth0": Leaf("a", "leaf1")}
    assert parse_lldp('{"lldp": {}}') == {}


def test_the_other_end_of_an_infiniband_cable() -> None:
    node = Node(CommandOutput((), 0, NODE_INFO, ""))
    assert read_leaves(node, [INFINIBAND]) == {3: Leaf("0xfc6a1c0300a1b2c0")}
    assert node.asked == [("smpquery", "-C", "mlx5_3", "-P", "1", "-D", "nodeinfo", "0,1")]
    assert isinstance(parse_node_info(NODE_INFO.replace("Switch", "Channel Adapter")), Unknown)


def test_what_cannot_be_read_is_unknown_with_its_reason() -> None:
    denied = CommandOutput((), 1, "", "smpquery: iberror: failed: Permission denied")
    found = read_leaves(Node(denied), [INFINIBAND])[3]
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NEEDS_ROOT
    missing = Unknown(Reason.NOT_THERE, "lldpctl", "not installed")
    node = Node(missing)
    assert read_leaves(node, [ETHERNET, replace(ETHERNET, number=1)]) == {0: missing, 1: missing}
    assert len(node.asked) == 1
    silent = read_leaves(Node(CommandOutput((), 0, lldp(neighbor("eth9", "a")), "")), [ETHERNET])[0]
    assert "lldpd has heard no switch on eth0" in str(silent)
    efa = read_leaves(node, [replace(ETHERNET, link_layer="Unspecified")])[0]
    assert isinstance(efa, Unknown)


def test_a_swapped_cable_shows_and_a_second_group_of_nodes_does_not() -> None:
    leaves: dict[str, dict[int, Maybe[Leaf]]] = {f"gpu{n}": {0: Leaf("a"), 1: Leaf("b")} for n in range(9)}
    leaves["gpu4"] = {0: Leaf("b"), 1: Leaf("a")}
    leaves["gpu5"][0] = Unknown(Reason.NEEDS_ROOT)
    first, second = check_rails(leaves)
    assert (first.elsewhere, second.elsewhere) == ({"gpu4": Leaf("b")}, {"gpu4": Leaf("a")})
    assert list(first.unknown) == ["gpu5"]
    two_groups = check_rails({f"gpu{n}": {0: Leaf("a" if n < 6 else "b")} for n in range(10)})[0]
    assert two_groups.elsewhere == {}
    assert two_groups.count == 2
    half = check_rails({"gpu1": {0: Leaf("a")}, "gpu2": {0: Leaf("b")}})[0]
    assert half.usual is None
    assert half.elsewhere == {}


@pytest.mark.slow
@given(
    st.one_of(
        st.text(max_size=300),
        st.builds(
            json.dumps,
            st.recursive(
                st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8)),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(
                        st.sampled_from(["lldp", "interface", "chassis", "id", "value", "x"]),
                        inner,
                        max_size=4,
                    )
                ),
                max_leaves=20,
            ),
        ),
    )
)
def test_no_output_raises_an_error(text: str) -> None:
    assert isinstance(parse_lldp(text), (dict, Unknown))
    assert isinstance(parse_node_info(text), (Leaf, Unknown))
