"""Every single fault of fleets of two to nine nodes is found, and named as what it is."""

from collections.abc import Callable, Sequence
from itertools import combinations

import pytest

from probes.fleet.fault_search import Fault, Group, Where, search_faults

RAILS = (0, 1, 2, 3)
IsBad = Callable[[Group], bool]


def names(count: int) -> tuple[str, ...]:
    return tuple(f"gpu{number}" for number in range(count))


def searched(nodes: Sequence[str], is_bad: IsBad, rails: Sequence[int] = RAILS) -> tuple[Fault, ...]:
    def passes(groups: Sequence[Group]) -> list[bool]:
        members = [node for group in groups for node in group.nodes]
        assert len(members) == len(set(members)), "groups at the same time have no node in common"
        assert all(len(group.nodes) > 1 for group in groups), "one node alone uses no network"
        return [not is_bad(group) for group in groups]

    return search_faults(nodes, rails, passes)


def uses(group: Group, rail: int) -> bool:
    return not group.rails or rail in group.rails


@pytest.mark.parametrize("count", range(3, 10))
def test_one_bad_node(count: int) -> None:
    nodes = names(count)
    for node in nodes:
        assert searched(nodes, lambda group, bad=node: bad in group.nodes) == (Fault(Where.NODE, (node,)),)  # type: ignore[misc]


@pytest.mark.parametrize("count", range(3, 10))
def test_one_bad_nic(count: int) -> None:
    nodes = names(count)
    for node in nodes:
        for rail in RAILS:
            found = searched(nodes, lambda group, bad=node, on=rail: bad in group.nodes and uses(group, on))  # type: ignore[misc]
            assert found == (Fault(Where.NIC, (node,), (rail,)),)


@pytest.mark.parametrize("count", range(2, 9))
def test_one_bad_nic_among_any_number_of_rails(count: int) -> None:
    rails = tuple(range(count))
    for rail in rails:
        found = searched(names(4), lambda group, on=rail: "gpu2" in group.nodes and uses(group, on), rails)  # type: ignore[misc]
        assert found == (Fault(Where.NIC, ("gpu2",), (rail,)),)
    (fault,) = searched(names(4), lambda group: "gpu2" in group.nodes, rails)
    assert fault == Fault(Where.NODE, ("gpu2",))


@pytest.mark.parametrize("count", range(2, 10))
def test_one_bad_pair(count: int) -> None:
    nodes = names(count)
    for pair in combinations(nodes, 2):
        found = searched(nodes, lambda group, bad=pair: set(bad) <= set(group.nodes))  # type: ignore[misc]
        assert found == (Fault(Where.PAIR, pair),)


@pytest.mark.parametrize("count", range(3, 10))
def test_one_bad_rail_of_all_nodes(count: int) -> None:
    nodes = names(count)
    for rail in RAILS:
        found = searched(nodes, lambda group, on=rail: uses(group, on))  # type: ignore[misc]
        assert found == (Fault(Where.RAIL, nodes, (rail,)),)


@pytest.mark.parametrize("count", range(4, 10))
def test_a_fault_that_only_the_whole_shows(count: int) -> None:
    nodes = names(count)
    (fault,) = searched(nodes, lambda group: len(group.nodes) == count)
    assert fault.where is Where.BETWEEN
    assert set(fault.nodes) | set(fault.others) == set(nodes)


@pytest.mark.parametrize("count", range(2, 10))
def test_nothing_passes(count: int) -> None:
    (fault,) = searched(names(count), lambda _: True)
    assert fault.where is (Where.PAIR if count == 2 else Where.EVERYWHERE)


@pytest.mark.parametrize("count", range(5, 10))
def test_two_bad_nodes(count: int) -> None:
    nodes = names(count)
    for pair in combinations(nodes, 2):
        found = searched(nodes, lambda group, bad=pair: bool(set(bad) & set(group.nodes)))  # type: ignore[misc]
        bad = {node for fault in found for node in fault.nodes}
        # With every group failing, nothing is healthy to confirm a suspect with.
        assert bad == set(pair) or found == (Fault(Where.EVERYWHERE, nodes),)


def test_the_searches_of_a_large_fleet_are_few() -> None:
    nodes, rounds = names(232), []

    def passes(groups: Sequence[Group]) -> list[bool]:
        rounds.append(len(groups))
        return ["gpu77" not in group.nodes for group in groups]

    assert search_faults(nodes, (), passes) == (Fault(Where.NODE, ("gpu77",)),)
    assert len(rounds) <= 9
