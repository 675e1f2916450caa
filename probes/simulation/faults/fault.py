"""A fault of a simulated node."""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import copy
from dataclasses import is_dataclass, replace
from typing import Any, Concatenate, ParamSpec

from probes.base.frozen import frozen
from probes.facts.rdma.devices import EMPTY_GID
from probes.simulation.node.model.description import NodeDescription
from probes.simulation.node.model.tree import Content, Tree, log
from probes.simulation.node.modules.loading import refuse_module, remove_modules
from probes.simulation.node.modules.modules import modinfo_of, set_modinfo

Given = ParamSpec("Given")
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


def as_change(function: Callable[Concatenate[Tree, Given], object]) -> Callable[Given, ChangeTree]:
    """Make a function of a tree and other values one of these values, which returns a change of a tree."""
    return lambda *values, **named: lambda tree: function(tree, *values, **named)


# What rows of a table need; `unloaded` names dependent modules first.
add_file, add_link = as_change(Tree.add), as_change(Tree.link)
logged, unloaded, refused = as_change(log), as_change(remove_modules), as_change(refuse_module)
set_module_field = as_change(set_modinfo)


def remove_path(*paths: str) -> ChangeTree:
    """Return a change that removes files, links or directories."""
    return lambda tree: [tree.remove(path) for path in paths]


def bind(tree: Tree, path: str, driver: str) -> None:
    """Bind a PCI function to another driver, or to none ("")."""
    lines = str(tree.files[f"{path}/uevent"]).splitlines(True)
    plain = "".join(line for line in lines if not line.startswith("DRIVER="))
    tree.add(f"{path}/uevent", f"DRIVER={driver}\n{plain}" if driver else plain)
    tree.remove(f"{path}/driver")


def replace_content(tree: Tree, path: str, content: Content) -> None:
    """Change a file, unless another fault has removed it."""
    if path in tree.files:
        tree.add(path, content)


def empty_gid(tree: Tree, port: str, index: int) -> None:
    """Empty an entry of a GID table, unless another fault has removed it."""
    replace_content(tree, f"{port}/gids/{index}", f"{EMPTY_GID}\n")
    tree.remove(f"{port}/gid_attrs/types/{index}")
    tree.remove(f"{port}/gid_attrs/ndevs/{index}")


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


def change_devices(change: Callable[[str], str | None]) -> ChangeDescription:
    """Return a change of the devices on all buses; None removes a device."""

    def changed(devices: list[Any]) -> list[Any]:
        found = (changed(device) if isinstance(device, list) else change(device) for device in devices)
        return [device for device in found if device is not None]

    return lambda description: replace(
        description,
        root=tuple(
            replace(root, switch=changed(root.switch), ports=changed(root.ports), flat=changed(root.flat))
            for root in description.root
        ),
    )


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
    *changes: ChangeTree,
    change_description: ChangeDescription = lambda description: description,
    finds: Collection[str] | None = None,
    on: str = "hgx-h100",
    excludes: Collection[str] = (),
    is_live: bool = False,
    shows: Collection[str] = (),
) -> Fault:
    """Return a fault that makes the changes of the tree in turn.

    Without `finds` the check of its name must find it, unless the live view shows it.
    """

    def change_tree(tree: Tree) -> None:
        for change in changes:
            change(tree)

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
