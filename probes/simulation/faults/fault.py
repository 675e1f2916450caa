"""One way in which a simulated node can be broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from probes.simulation.node.description import NodeDescription
from probes.simulation.node.tree import Tree


def _no_change_of_description(description: NodeDescription) -> NodeDescription:
    return replace(description)


def _no_change_of_tree(tree: Tree) -> None:
    del tree


@dataclass(frozen=True)
class Fault:
    """A fault and the findings that it causes; it changes the description, the grown tree, or both."""

    name: str  # as after the "+"; mostly the finding's id
    finds: frozenset[str]  # ids of the checks that must find it
    describe: Callable[[NodeDescription], NodeDescription] = _no_change_of_description
    spoil: Callable[[Tree], None] = _no_change_of_tree
    on: str = "hgx-h100"  # a node on which it makes sense
    excludes: frozenset[str] = frozenset()  # faults that hide this one
