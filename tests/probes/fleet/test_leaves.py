"""The switch of each rail is read from LLDP or from the InfiniBand neighbor, and compared between nodes."""

import json
from collections.abc import Sequence
from dataclasses import replace

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.rdma.cable_ends import NOT_INSTALLED, CableEnd
from probes.fleet.rails import CableFaultKind, Rail, cable_faults, check_rails, read_leaves
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
LocalPort:.......................7
"""


LLDP = json.dumps(
    {
        "lldp": {
            "interface": {"eth0": {"chassis": {"leaf1": {"id": {"value": "0c:42:a1:00:00:01"}}}, "port": {}}}
        }
    }
)


def faults_of(*nodes: str) -> list[tuple[CableFaultKind, tuple[str, ...]]]:
    """Return the faults of nodes whose rails end at switches of these letters."""
    leaves = {
        f"gpu{number}": {
            rail: Unknown(Reason.NEEDS_ROOT)
            if letter == " "
            else CableEnd(letter, port_id=f"swp{number}s{rail}")
            for rail, letter in enumerate(text)
        }
        for number, text in enumerate(nodes)
    }
    found = cable_faults(check_rails(leaves), lambda node, rail: f"{node}.{rail}")
    return [(fault.kind, fault.nics) for fault in found]


class Node(SimulatedHost):
    """Answers both commands as scripted."""

    def __init__(self, answer: Maybe[CommandOutput]) -> None:
        super().__init__("cloud-vm")
        self.answer = answer
        self.asked: list[tuple[str, ...]] = []

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        self.asked.append(tuple(argv))
        return self.answer


def test_the_other_end_of_an_infiniband_cable() -> None:
    node = Node(CommandOutput((), 0, NODE_INFO, ""))
    assert read_leaves(node, [INFINIBAND]) == {3: CableEnd("0xfc6a1c0300a1b2c0", port_id="7")}
    assert node.asked == [("smpquery", "-C", "mlx5_3", "-P", "1", "-D", "nodeinfo", "0,1")]
    adapter = Node(CommandOutput((), 0, NODE_INFO.replace("Switch", "Channel Adapter"), ""))
    assert "leads to a Channel Adapter" in str(read_leaves(adapter, [INFINIBAND])[3])
    assert isinstance(read_leaves(Node(CommandOutput((), 0, "", "")), [INFINIBAND])[3], Unknown)


def test_what_cannot_be_read_is_unknown_with_its_reason() -> None:
    denied = CommandOutput((), 1, "", "smpquery: iberror: failed: Permission denied")
    found = read_leaves(Node(denied), [INFINIBAND])[3]
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NEEDS_ROOT
    missing = Unknown(Reason.NOT_THERE, "lldpctl", "not installed")
    node = Node(missing)
    assert read_leaves(node, [ETHERNET, replace(ETHERNET, number=1)]) == {0: NOT_INSTALLED, 1: NOT_INSTALLED}
    assert len(node.asked) == 1
    heard = read_leaves(Node(CommandOutput((), 0, LLDP, "")), [ETHERNET, replace(ETHERNET, netdev="eth1")])
    assert "lldpd has heard no switch" in str(heard[0])
    efa = read_leaves(node, [replace(ETHERNET, link_layer="Unspecified")])[0]
    assert isinstance(efa, Unknown)


def test_a_swapped_cable_shows_and_a_second_group_of_nodes_does_not() -> None:
    swapped, wrong = CableFaultKind.SWAPPED, CableFaultKind.WRONG_SWITCH
    assert faults_of(*["ab"] * 4, "ba", " b", *["ab"] * 3) == [(swapped, ("gpu4.0", "gpu4.1"))]
    assert faults_of("abcd", "abcd", "abcx") == [(wrong, ("gpu2.3",))]
    assert faults_of(*["a"] * 6, *["b"] * 4) == []
    assert faults_of("a", "b") == []  # half have each


def test_each_group_of_nodes_at_the_same_leaves_is_compared_by_itself() -> None:
    """With two scalable units of equal size, no leaf has more than half of a rail."""
    first, second = ["abcd"] * 3, ["efgh"] * 3
    assert faults_of(*first, *second) == []
    assert faults_of(*first, "abdc", *second, "efgx") == [
        (CableFaultKind.SWAPPED, ("gpu3.2", "gpu3.3")),
        (CableFaultKind.WRONG_SWITCH, ("gpu7.3",)),
    ]
    assert faults_of(*first, *first, "efgh") == []  # the only node of another unit


def test_cables_without_a_system_are_no_fault() -> None:
    assert faults_of("ab", "ba", "ab", "ba", "ab", "ba") == []
    assert faults_of(*["aaaa"] * 3, *["bbbb"] * 3) == []  # a switch a rack


def test_two_nics_at_one_switch_port() -> None:
    end = CableEnd("0c:42:a1:00:00:01", "leaf1", "swp3")
    rails = check_rails({"gpu1": {0: end}, "gpu2": {0: end}, "gpu3": {0: replace(end, port_id="swp4")}})
    (fault,) = cable_faults(rails, lambda node, rail: "mlx5_0")
    assert (fault.kind, fault.nodes) == (CableFaultKind.SAME_PORT, ("gpu1", "gpu2"))


def test_names_of_a_redacted_recording_are_not_compared() -> None:
    ends = {f"gpu{n}": {0: CableEnd(f"redacted-{n % 2}", port_id="swp1")} for n in range(9)}
    assert cable_faults(check_rails(ends), lambda node, rail: "") == ()
