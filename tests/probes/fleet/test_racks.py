"""Racks: which nodes share an NVLink domain, how many there should be, and in what they differ."""

from dataclasses import replace

import pytest

from probes.fleet.compare import Fleet, compare
from probes.fleet.fleet_watch import FleetWatch
from probes.fleet.racks import Rack, racks_of
from probes.fleet.summary import NodeSummary
from probes.fleet.traits import Trait
from tests.support.fleet_nodes import node, nodes, with_value
from widgets.base.lines import plain
from widgets.fleet.answer import draw_table
from widgets.fleet.differences import draw_racks

DOMAIN = "51a01a7e-0000-4000-8000-000000000000"


def in_domain(summary: NodeSummary, domain: str) -> NodeSummary:
    traits = (
        replace(each, slot=f"domain {domain}") if each.fact == "clique" else each for each in summary.traits
    )
    return replace(summary, traits=tuple(traits))


def with_list(summary: NodeSummary, value: str) -> NodeSummary:
    """The node with a list of its IMEX domain."""
    return replace(
        summary, traits=(*summary.traits, Trait("imex-nodes", value, f"domain {DOMAIN}, clique 1"))
    )


def rack_of(*members: NodeSummary) -> Rack:
    (rack,) = racks_of(compare(members))
    return rack


def drawn(fleet: Fleet) -> list[str]:
    return [plain(each).strip() for each in draw_racks(fleet, 200)][2:]


def faults(rack: Rack) -> dict[str, str]:
    return {found.fact.id: rack.meaning_of(found) for found in rack.differences}


def test_equal_nodes_are_one_rack_and_one_line() -> None:
    fleet = compare(nodes(18, "gb200"))
    assert drawn(fleet) == ["NVLink domain 51a01a7e: 18 nodes, 72 GPUs, clique 1, IMEX active: gpu[001-018]"]
    (rack,) = racks_of(fleet)
    assert (rack.domain, rack.expected_nodes, rack.gpus) == (DOMAIN, None, 72)


@pytest.mark.parametrize("label", ["hgx-h100", "hgx-b200", "pcie-l40s", "bare-roce", "vera-rubin"])
def test_nodes_whose_nvlink_ends_at_the_board_are_in_no_rack(label: str) -> None:
    racks = racks_of(compare(nodes(2, label)))
    assert all(rack.domain for rack in racks)
    assert bool(racks) == any(trait.fact == "clique" for trait in node("a", label).traits)


def test_the_imex_list_says_how_many_nodes_there_should_be() -> None:
    members = [with_list(each, "18 nodes, 3f2a91c0") for each in nodes(17, "gb200")]
    assert rack_of(*members).expected_nodes == 18
    assert drawn(compare(members))[0].startswith("NVLink domain 51a01a7e: 17 of 18 nodes, 68 GPUs")
    named = [
        replace(each, role=replace(each.role, machine="Vendor GB200 NVL72")) for each in nodes(2, "gb200")
    ]
    assert rack_of(*named).expected_nodes == 18
    short = with_list(node("gpu018", "gb200"), "17 nodes, 0a0b0c0d")
    rack = rack_of(*members, short)
    assert rack.expected_nodes is None
    assert faults(rack) == {"imex-nodes": "IMEX does not start where the lists differ"}
    assert drawn(compare([*members, short]))[1] == (
        "▲ IMEX node list differs on gpu018: IMEX does not start where the lists differ"
    )


def test_a_node_in_another_clique_is_a_fault_and_a_partition_is_not() -> None:
    members = nodes(17, "gb200")
    alone = with_value(node("gpu018", "gb200"), "clique", "2")
    assert faults(rack_of(*members, alone))["clique"].startswith("GPUs of different cliques")
    half = [with_value(node(f"gpu1{number:02}", "gb200"), "clique", "2") for number in range(9)]
    rack = rack_of(*members, *half)
    assert faults(rack) == {"clique": ""}
    assert rack.cliques == {"1": 17, "2": 9}


def test_health_and_versions_are_compared_within_a_rack() -> None:
    members = nodes(3, "gb200")
    sick = node("gpu004", "gb200+gpu-fabric-unhealthy")
    assert faults(rack_of(*members, sick)) == {"fabric": "NVLink is missing or slower there"}
    old = with_value(node("gpu004", "gb200"), "driver", "570.86.15 (open kernel modules)")
    assert faults(rack_of(*members, old)) == {"driver": ""}
    other = in_domain(old, "6c000000-0000-4000-8000-000000000000")
    first, second = racks_of(compare([*members, other]))
    assert (len(first.nodes), second.nodes) == (3, ("gpu004",))
    assert not first.differences
    assert not second.differences


def test_the_fleet_screen_names_the_racks_if_there_are_several() -> None:
    members = nodes(2, "gb200")
    watch = FleetWatch([each.name for each in members])

    def head(*summaries: NodeSummary) -> str:
        for each in summaries:
            watch.add_answer(each, 1.0)
        return "\n".join(plain(each) for each in draw_table(list(watch.nodes), {}, 0.0, 1.0, 200))

    assert "rack" not in head(*members)
    assert "rack 6c000000" in head(in_domain(members[1], "6c000000-0000-4000-8000-000000000000"))


def test_a_node_whose_domain_is_not_known_is_named() -> None:
    fleet = compare([*nodes(3, "gb200"), node("gpu004", "gb200+nvidia-not-loaded"), node("h1", "hgx-h100")])
    assert drawn(fleet)[1] == "NVLink domain unknown: 1 node, 4 GPUs, IMEX active: gpu004"
    assert [rack.domain for rack in racks_of(fleet)] == [DOMAIN, ""]
