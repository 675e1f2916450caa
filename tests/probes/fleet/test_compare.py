from dataclasses import replace

import pytest

from probes.base.unknown import Reason, Unknown
from probes.checks.judgment import judge
from probes.fleet.compare import Difference, Fleet, Unanswered, changes_between, compare, fleet_status
from probes.fleet.summary import NodeSummary, summarize
from probes.fleet.traits import Trait
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine
from probes.snapshot.verdict import State
from tests.support.fleet_nodes import node, nodes, simulated, with_value


def found(fleet: Fleet, fact: str) -> Difference:
    (difference,) = (difference for difference in fleet.differences if difference.fact.id == fact)
    return difference


def test_equal_nodes_do_not_differ_and_are_one_group() -> None:
    fleet = compare(nodes(64))
    assert fleet.differences == ()
    assert [len(group.nodes) for group in fleet.groups] == [64]
    assert fleet.counts == {State.ACTIVE: 64}
    assert fleet_status(fleet) == 0


def test_one_node_with_another_driver_is_named_and_the_rest_is_the_majority() -> None:
    odd = with_value(node("gpu064"), "driver", "570.86.15 (open kernel modules)")
    difference = found(compare([*nodes(63), odd]), "driver")
    assert difference.rest is not None
    assert (difference.rest.value, len(difference.rest.nodes)) == ("570.211.01 (open kernel modules)", 63)
    assert [(kind.value, kind.nodes) for kind in difference.others] == [
        ("570.86.15 (open kernel modules)", ("gpu064",))
    ]


def test_without_a_majority_of_three_all_kinds_are_named() -> None:
    kernels = ("6.8.0-45", "6.8.0-45", "6.8.0-48", "6.5.0")
    members = [with_value(member, "kernel", kernel) for member, kernel in zip(nodes(4), kernels, strict=True)]
    difference = found(compare(members), "kernel")
    assert difference.rest is None
    assert [kind.value for kind in difference.others] == ["6.8.0-45", "6.8.0-48", "6.5.0"]
    assert found(compare(members[1:3]), "kernel").rest is None


def test_the_worst_nodes_come_first_and_nodes_with_the_same_findings_are_one_group() -> None:
    faulty = [node("gpu061", "hgx-h100+acs-on"), node("gpu062", "hgx-h100+acs-on")]
    broken = node("gpu063", "hgx-h100+nvidia-not-loaded")
    fleet = compare([*nodes(60), *faulty, broken])
    assert [group.nodes for group in fleet.groups[:2]] == [("gpu063",), ("gpu061", "gpu062")]
    assert fleet.groups[1].findings[0].id == "acs-redirect-enabled"
    assert found(fleet, "acs").others[0].nodes == ("gpu061", "gpu062")
    assert [difference.fact.id for difference in fleet.differences] == ["driver", "module", "acs"]


def test_a_missing_nic_shifts_no_other_nic() -> None:
    fleet = compare([*nodes(5), node("gpu006", "hgx-h100+nic-without-rdma-device")])
    assert [difference.fact.id for difference in fleet.differences] == ["nic"]
    difference = found(fleet, "nic")
    assert difference.slots == ("mlx5_5",)
    assert [(kind.value, kind.nodes) for kind in difference.others] == [("missing", ("gpu006",))]


def test_a_node_that_numbers_its_host_bridges_otherwise_is_still_compared() -> None:
    member = node("gpu005")
    moved = tuple(
        Trait(trait.fact, trait.value, trait.slot.replace("pci0000:", "pci0001:"), trait.device)
        for trait in member.traits
    )
    odd = with_value(replace(member, traits=moved), "firmware", "28.39.1002", device="mlx5_3")
    fleet = compare([*nodes(4), odd])
    assert [(difference.fact.id, difference.slots) for difference in fleet.differences] == [
        ("firmware", ("mlx5_3",))
    ]


def test_devices_that_differ_alike_are_one_difference() -> None:
    difference = found(compare([*nodes(3), with_value(node("gpu004"), "persistence", "off")]), "persistence")
    assert difference.slots == tuple(f"GPU{number}" for number in range(8))


def test_kernel_options_are_compared_one_by_one() -> None:
    fleet = compare([*nodes(3), node("gpu004", "hgx-h100+iommu-translated")])
    options = {difference.slots: difference for difference in fleet.differences}
    assert options["iommu",].others[0].value == "not set"
    assert options["intel_iommu",].others[0].value == "on"


def test_an_unknown_fact_is_not_compared_and_says_why() -> None:
    hidden = with_value(node("gpu004"), "acs", Unknown(Reason.NEEDS_ROOT))
    fleet = compare([*nodes(3), hidden])
    assert fleet.differences == ()
    assert [(row.facts[0].id, row.reason, row.nodes) for row in fleet.uncompared] == [
        ("acs", "needs root", ("gpu004",))
    ]


def test_unread_devices_are_unknown_and_not_missing() -> None:
    member = node("gpu004")
    traits = (
        *(trait for trait in member.traits if not trait.device.startswith("mlx5")),
        Trait("nic", Unknown(Reason.TIMED_OUT)),
    )
    fleet = compare([*nodes(3), replace(member, traits=traits)])
    assert fleet.differences == ()
    assert fleet.uncompared[0].reason == "timed out"


def test_nodes_of_other_types_are_not_compared_with_the_rest() -> None:
    fleet = compare([*nodes(5), *nodes(3, "gb200", "gb"), *nodes(1, "cloud-vm", "login")])
    assert fleet.differences == ()
    assert [count for _, count in fleet.roles] == [5, 3, 1]
    assert compare([*nodes(1), *nodes(1, "gb200", "gb")], by_type=False).differences


def with_figures(figures: list[float]) -> list:  # type: ignore[type-arg]
    return [
        replace(member, traits=(Trait("bandwidth", figure, "write bandwidth, GPU0 mlx5_0"),))
        for member, figure in zip(nodes(len(figures)), figures, strict=True)
    ]


def test_a_figure_differs_if_it_is_far_from_the_median_of_five_nodes() -> None:
    difference = found(compare(with_figures([371.0, 368.0, 372.0, 370.0, 148.0])), "bandwidth")
    assert difference.rest is not None
    assert difference.rest.value == "370 Gb/s (median)"
    assert [(kind.value, kind.nodes) for kind in difference.others] == [("148 Gb/s", ("gpu005",))]
    assert compare(with_figures([371.0, 368.0, 372.0, 148.0])).differences == ()  # too few
    assert compare(with_figures([370.0, 370.0, 370.0, 370.0, 360.0])).differences == ()  # below the floor
    noisy = [300.0, 330.0, 370.0, 400.0, 420.0, 290.0]
    assert compare(with_figures(noisy)).differences == ()


def test_two_nodes_that_were_named_are_compared_in_figures_too() -> None:
    assert compare(with_figures([370.0, 148.0]), by_type=False).differences[0].rest is None
    assert compare(with_figures([370.0, 365.0]), by_type=False).differences == ()


def test_the_exit_status_is_that_of_the_worst_node_that_is_not_tolerated() -> None:
    members = [*nodes(3), node("gpu004", "hgx-h100+acs-on"), node("gpu005", "hgx-h100+nvidia-not-loaded")]
    fleet = compare(members, [Unanswered("gpu006", "timed out")])
    assert [fleet_status(fleet, tolerance) for tolerance in range(5)] == [2, 3, 1, 0, 0]
    assert fleet_status(compare([])) == 0


def test_a_fact_of_a_newer_gdrtop_is_compared_too() -> None:
    members = [
        replace(simulated(), name=f"n{number}", traits=(Trait("new-fact", text),))
        for number, text in enumerate(("a", "a", "a", "b"))
    ]
    assert compare(members).differences[0].fact.label == "new-fact"


def trays(*odd: str) -> list[NodeSummary]:
    """Five trays of one rack; `odd`: the lines of nodes_config.cfg of the last one."""
    lists = [("10.0.0.1", "10.0.0.2", "10.0.0.3")] * 4 + [odd or ("10.0.0.3", "10.0.0.2", "10.0.0.1")]
    members = []
    for number, lines in enumerate(lists, 1):
        host = SimulatedHost("gb200")
        host.tree.add("/etc/nvidia-imex/nodes_config.cfg", "\n".join(("# rack 7", *lines)))
        examination = examine(host)
        members.append(replace(summarize(examination, judge(examination)), name=f"tray{number}"))
    return members


def test_trays_of_a_rack_are_compared_by_their_nvlink_domain() -> None:
    """NVIDIA IMEX guide, Deployment Models: instances whose IP address maps differ fail to initialize."""
    members = trays()
    assert compare(members).differences == ()
    fleet = compare([*members[:4], with_value(members[4], "clique", "2")])
    assert found(fleet, "clique").others[0].nodes == ("tray5",)


def test_a_tray_with_another_list_of_imex_nodes_is_named() -> None:
    difference = found(compare(trays("10.0.0.1", "10.0.0.2")), "imex-nodes")
    assert difference.others[0].nodes == ("tray5",)
    assert difference.others[0].value.startswith("2 nodes, ")
    assert difference.rest is not None
    assert difference.rest.value.startswith("3 nodes, ")


def test_racks_may_differ_from_each_other() -> None:
    members = trays()
    other = [
        replace(
            member,
            name=f"other{member.name}",
            traits=tuple(
                replace(each, slot=each.slot.replace("domain ", "domain 2"), value="32766")
                if each.fact in ("clique", "imex-nodes")
                else each
                for each in member.traits
            ),
        )
        for member in members
    ]
    assert compare([*members, *other]).differences == ()


def errors_of(fleet: Fleet) -> list[Difference]:
    return [difference for difference in fleet.differences if difference.fact.id == "bit-errors"]


def test_a_port_with_far_more_bit_errors_than_its_rail_is_named() -> None:
    bad = node("gpu017", "hgx-h100+ber-rising")
    (difference,) = errors_of(compare([*nodes(16), bad]))
    assert difference.slots == ("mlx5_3",)
    assert difference.rest is not None
    (kind,) = difference.others
    assert kind.nodes == ("gpu017",)
    assert kind.value.startswith("2e-06 of the bits, ")
    assert kind.value.endswith("times as much")
    assert errors_of(compare([*nodes(3), bad])) == []  # too few for a median
    assert errors_of(compare(nodes(16))) == []


@pytest.mark.parametrize(("rate", "count"), [(5e-9, 0), (2e-8, 1), (0.0, 0)])
def test_a_low_error_rate_is_no_difference_however_low_the_others_are(rate: float, count: int) -> None:
    odd = with_value(node("gpu017"), "bit-errors", rate)
    others = [with_value(each, "bit-errors", 1e-12) for each in nodes(8)]
    assert len(errors_of(compare([*others, odd]))) == count


def test_ports_of_another_speed_or_fec_are_not_compared() -> None:
    bad = node("gpu017", "hgx-h100+ber-rising")
    slow = tuple(
        replace(each, slot=each.slot.replace("NDR", "EDR")) if each.fact == "bit-errors" else each
        for each in bad.traits
    )
    assert errors_of(compare([*nodes(16), replace(bad, traits=slow)])) == []


def test_error_rates_of_older_summaries_are_not_recorded() -> None:
    old = node("gpu017")
    old = replace(old, traits=tuple(each for each in old.traits if each.fact != "bit-errors"))
    (uncompared,) = compare([*nodes(8), old]).uncompared
    assert (uncompared.reason, uncompared.nodes) == ("not recorded", ("gpu017",))
    assert [fact.id for fact in uncompared.facts] == ["bit-errors"]


def test_a_port_of_its_own_speed_that_has_no_rate_yet_is_recorded() -> None:
    odd = with_value(node("gpu017"), "bit-errors", Unknown(Reason.NOT_YET))
    moved = (
        replace(each, slot=each.slot.replace("NDR", "HDR")) if each.fact == "bit-errors" else each
        for each in odd.traits
    )
    fleet = compare([*nodes(6), replace(odd, traits=tuple(moved))])
    assert all(uncompared.reason != "not recorded" for uncompared in fleet.uncompared)


def test_a_driver_that_does_not_count_bits_is_unknown_only_beside_others() -> None:
    def without(member: NodeSummary) -> NodeSummary:
        return with_value(member, "bit-errors", Unknown(Reason.NOT_YET))

    assert compare([without(member) for member in nodes(6)]).uncompared == ()
    (uncompared,) = compare([*nodes(6), without(node("gpu017"))]).uncompared
    assert uncompared.nodes == ("gpu017",)


def test_two_moments_differ_in_bit_errors_only_if_they_rose_far() -> None:
    before, now = node("gpu001"), node("gpu001", "hgx-h100+ber-rising")
    (change,) = changes_between(before, now).changes
    assert (change.fact.id, change.slots) == ("bit-errors", ("mlx5_3",))
    risen = with_value(before, "bit-errors", 5e-9)
    assert changes_between(before, risen).changes == ()
