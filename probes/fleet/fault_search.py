"""Which node, pair, NIC or rail makes a job over many nodes fail, by jobs on some of them.

All groups are halved at once, and each suspect is tested with another, healthy node, as NVCRE's diagnose does
(ADR-055, ADR-056). A group of two halves that pass, but not together, has its fault between them. Groups
tested at the same time have no node in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import TypeVar

from probes.base.frozen import frozen

Item = TypeVar("Item")


@frozen
class Group:
    """Nodes that run one job together, over some of their rails; () means all."""

    nodes: tuple[str, ...]
    rails: tuple[int, ...] = ()


Passes = Callable[[Sequence[Group]], Sequence[bool]]
"""Tests groups without a common node at the same time, and returns which of them pass."""


class Where(Enum):
    """What a fault belongs to."""

    NODE = "node"
    NIC = "NIC"
    PAIR = "pair"
    RAIL = "rail"
    BETWEEN = "between groups"  # each passes alone, and they fail together
    EVERYWHERE = "everywhere"


@frozen
class Fault:
    """One fault that was found."""

    where: Where
    nodes: tuple[str, ...]
    rails: tuple[int, ...] = ()
    others: tuple[str, ...] = ()  # the other group, for BETWEEN


def search_faults(nodes: Sequence[str], rails: Sequence[int], passes: Passes) -> tuple[Fault, ...]:
    """Find what makes all nodes together fail; `rails`: their numbers, () if they cannot be chosen."""
    search = _Search(tuple(rails), passes)
    found = search.of_groups(tuple(nodes))
    return tuple(dict.fromkeys(found))


def _halves(items: tuple[Item, ...]) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    half = len(items) // 2
    return items[:half], items[half:]


class _Search:
    def __init__(self, rails: tuple[int, ...], passes: Passes) -> None:
        self._rails, self._passes = rails, passes

    def _is_good(self, nodes: Iterable[str], rails: tuple[int, ...] = ()) -> bool:
        return self._passes([Group(tuple(nodes), rails)])[0]

    def of_groups(self, nodes: tuple[str, ...]) -> list[Fault]:
        """Halve what fails, down to two or three nodes."""
        failing, small, healthy = [nodes], [], []
        split: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        while failing:
            small += [group for group in failing if len(group) < 4]
            halves = [_halves(group) for group in failing if len(group) > 3]
            failing = []
            answers = iter(self._passes([Group(half) for pair in halves for half in pair]) if halves else ())
            for pair in halves:
                passed = [half for half in pair if next(answers)]
                failing += [half for half in pair if half not in passed]
                healthy += [node for half in passed for node in half]
                if len(passed) == 2:
                    split.append(pair)
        found = [self._between(*pair) for pair in split]
        if not small:
            return found
        if not healthy:
            return found + self._without_healthy(nodes, small)
        bad = self._confirmed([node for group in small for node in group], healthy)
        found += [self._nic_or_node(node, healthy[place % len(healthy)]) for place, node in enumerate(bad)]
        for group in small:
            if not set(bad) & set(group):
                found += self._pairs(group)
        return found

    def _confirmed(self, suspects: Sequence[str], healthy: Sequence[str]) -> list[str]:
        """Return the suspects that fail with a healthy node too, as many at once as there are such nodes."""
        bad = []
        for first in range(0, len(suspects), len(healthy)):
            some = suspects[first : first + len(healthy)]
            groups = [Group((node, partner)) for node, partner in zip(some, healthy, strict=False)]
            bad += [node for node, good in zip(some, self._passes(groups), strict=True) if not good]
        return bad

    def _nic_or_node(self, node: str, partner: str) -> Fault:
        rails = self._bad_rails((node, partner))
        return Fault(Where.NIC if rails else Where.NODE, (node,), rails)

    def _bad_rails(self, nodes: tuple[str, ...]) -> tuple[int, ...]:
        """Return the rails that fail alone; () if all do, for which three failing parts stand, or none."""
        failing = [self._rails] if len(self._rails) > 1 else []
        while any(len(part) > 1 for part in failing):
            halves = [half for part in failing for half in (_halves(part) if len(part) > 1 else (part,))]
            failing = [half for half in halves if half in failing or not self._is_good(nodes, half)]
            are_all = sum(map(len, failing)) == len(self._rails)
            if are_all and (len(failing) > 2 or len(failing) == len(self._rails)):
                return ()
        return tuple(sorted(rail for part in failing for rail in part))

    def _pairs(self, group: tuple[str, ...]) -> list[Fault]:
        """Return the pairs of a small group that fail; none of its nodes does with others."""
        if len(group) == 2:
            return [Fault(Where.PAIR, group, self._bad_rails(group))]
        pairs = [(group[0], group[1]), (group[1], group[2]), (group[0], group[2])]
        bad = [pair for pair in pairs if not self._is_good(pair)]
        if not bad:
            return [Fault(Where.BETWEEN, group)]
        return [Fault(Where.PAIR, pair, self._bad_rails(pair)) for pair in bad]

    def _without_healthy(self, nodes: tuple[str, ...], small: Sequence[tuple[str, ...]]) -> list[Fault]:
        """Return the faults if every group fails: those of a rail, or of a node or pair among three."""
        if len(nodes) == 3:
            found = self._pairs(nodes)
            of_pairs = [set(fault.nodes) for fault in found if fault.where is Where.PAIR]
            common = set.intersection(*of_pairs) if len(of_pairs) == 2 else set()
            if common:
                (node,) = common
                return [self._nic_or_node(node, next(each for each in nodes if each != node))]
            if len(of_pairs) < 3:
                return found
        rails = self._bad_rails(nodes)
        if rails:
            where = Where.RAIL if len(nodes) > 2 else Where.PAIR
            return [Fault(where, nodes, rails)]
        return [Fault(Where.PAIR if len(nodes) == 2 else Where.EVERYWHERE, nodes)]

    def _between(self, first: tuple[str, ...], second: tuple[str, ...]) -> Fault:
        """Return the pair between two groups that pass alone, or the smallest parts that fail together."""
        sides = [first, second]
        for side in (0, 1):
            while len(sides[side]) > 1:
                rest = sides[1 - side]
                # The halves in the middle first: in a ring, neighbors are what fails.
                parts = _halves(sides[side])[:: 1 if side else -1]
                failing = (part for part in parts if not self._is_good(rest + part if side else part + rest))
                smaller = next(failing, None)
                if smaller is None:
                    break
                sides[side] = smaller
        if len(sides[0]) == len(sides[1]) == 1:
            pair = sides[0] + sides[1]
            return Fault(Where.PAIR, pair, self._bad_rails(pair))
        return Fault(Where.BETWEEN, sides[0], (), sides[1])
