"""A fault of a simulated node."""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import copy

from probes.base.frozen import frozen
from probes.simulation.node.model.description import NodeDescription
from probes.simulation.node.model.tree import Tree
from probes.simulation.node.modules.files import modinfo_of

ChangeTree = Callable[[Tree], None]
ChangeDescription = Callable[[NodeDescription], NodeDescription]


@frozen
class Fault:
    """A fault and the findings that it causes: a change of the description, of the tree, or of both."""

    name: str  # as after the "+"; usually the id of the finding
    summary: str  # what is wrong, as `--demo list` shows it
    finds: frozenset[str]  # ids of the checks that must find it
    change_description: ChangeDescription
    change_tree: ChangeTree
    on: str  # a node that can have the fault
    excludes: frozenset[str]  # faults that hide this one
    is_live: bool = False  # it shows over time, in the live view; a check finds it only by the job's log
    shows: frozenset[str] = frozenset()  # ids of checks that find it once gdrtop has watched it for a while


def state_of(tree: Tree) -> dict[str, object]:
    """Return a copy of what a fault can change in a tree, to compare with a later copy."""
    return {
        **{name: copy(value) for name, value in vars(tree).items() if name != "resolved"},
        "directories": {path: frozenset(names) for path, names in tree.directories.items()},
        "programs": [copy(program) for program in tree.programs],
        "modinfo": {name: dict(fields) for name, fields in modinfo_of(tree).files.items()},
    }


def fault(
    name: str,
    summary: str,
    change_tree: ChangeTree = lambda tree: None,
    *,
    change_description: ChangeDescription = lambda description: description,
    finds: Collection[str] | None = None,
    on: str = "hgx-h100",
    excludes: Collection[str] = (),
    is_live: bool = False,
    shows: Collection[str] = (),
) -> Fault:
    """Return a fault; without `finds` the check of its name must find it, unless the live view shows it."""
    checks = frozenset((() if is_live else (name,)) if finds is None else finds)
    return Fault(
        name,
        summary,
        checks,
        change_description,
        change_tree,
        on,
        frozenset(excludes),
        is_live,
        frozenset(shows),
    )
