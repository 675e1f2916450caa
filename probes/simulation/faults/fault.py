"""A fault of a simulated node."""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import copy
from dataclasses import is_dataclass, replace
from typing import Any

from probes.base.frozen import frozen
from probes.simulation.node.model.description import NodeDescription
from probes.simulation.node.model.tree import Content, Tree
from probes.simulation.node.modules.files import modinfo_of

ChangeTree = Callable[[Tree], object]  # what it returns does not matter
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


def add_file(path: str, content: Content) -> ChangeTree:
    """Return a change that adds a file."""
    return lambda tree: tree.add(path, content)


def remove_path(path: str) -> ChangeTree:
    """Return a change that removes a file, a link or a directory."""
    return lambda tree: tree.remove(path)


def replace_content(tree: Tree, path: str, content: Content) -> None:
    """Change a file, unless another fault has removed it."""
    if path in tree.files:
        tree.add(path, content)


def change_fields(**fields: Any) -> ChangeDescription:
    """Return a change of fields; a dict has the fields of a part, as `driver={"flavor": "proprietary"}`."""

    def change(description: NodeDescription) -> NodeDescription:
        parts = {name: getattr(description, name) for name in fields}
        changed = {
            name: replace(parts[name], **value) if is_dataclass(parts[name]) else value
            for name, value in fields.items()
        }
        return replace(description, **changed)

    return change


def append_to_cmdline(words: str) -> ChangeDescription:
    """Return a change that adds words to the kernel command line."""
    return lambda description: replace(description, cmdline=f"{description.cmdline} {words}")


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
    causes = (change_description, change_tree)
    return Fault(name, summary, checks, *causes, on, frozenset(excludes), is_live, frozenset(shows))


class Faults(list[Fault]):
    """The faults of one file: functions below `@FAULTS.fault(…)`, and rows of a table at its end."""

    def fault(self, name: str, summary: str, **options: Any) -> Callable[[ChangeTree], ChangeTree]:
        """Add a fault whose change of the tree is the decorated function; options as of `fault`."""

        def add(change_tree: ChangeTree) -> ChangeTree:
            self.append(fault(name, summary, change_tree, **options))
            return change_tree

        return add
