"""A fault of a simulated node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Concatenate, ParamSpec

from probes.base.data_files import read_toml
from probes.base.frozen import frozen
from probes.facts.rdma.devices import EMPTY_GID
from probes.simulation.node.jobs.processes import library_directory
from probes.simulation.node.model.description import NodeDescription, with_fields
from probes.simulation.node.model.tree import Content, Tree, log
from probes.simulation.node.modules.loading import refuse_module, remove_modules
from probes.simulation.node.modules.modules import modinfo_of, remove_module_file, set_modinfo
from probes.simulation.node.system.services import stop

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
    is_everywhere: bool = False  # it has a part on each node of a fleet


def as_change(function: Callable[Concatenate[Tree, Given], object]) -> Callable[Given, ChangeTree]:
    """Make a function of a tree and other values one of these values, which returns a change of a tree."""
    return lambda *values, **named: lambda tree: function(tree, *values, **named)


# What rows of a table need; `unloaded` names dependent modules first.
add_file, add_link = as_change(Tree.add), as_change(Tree.link)
unloaded, refused = as_change(remove_modules), as_change(refuse_module)


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
    return lambda description: with_fields(description, fields)


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


def _names(tree: Tree) -> dict[str, str]:
    """Return what {kernel}, {libraries} and a device such as {GPU0} or {mlx5_0} stand for: of those, BDFs."""
    devices = {f"GPU{number}": gpu.bdf for number, gpu in enumerate(tree.gpus)}
    devices |= {nic.name: nic.bdf for nic in tree.nics}
    return {"kernel": tree.description.kernel, "libraries": library_directory(tree), **devices}


@as_change
def _add_files(tree: Tree, files: Mapping[str, Content]) -> None:
    for path, content in files.items():
        tree.add(path.format_map(_names(tree)), content)


@as_change
def _add_links(tree: Tree, links: Mapping[str, str]) -> None:
    for path, target in links.items():
        tree.link(path.format_map(_names(tree)), target)


@as_change
def _log_lines(tree: Tree, lines: list[Any]) -> None:
    """Log lines; one that is not a text alone has its moment and its level, too."""
    for text, *when in ([line] if isinstance(line, str) else line for line in lines):
        log(tree, text.format_map(_names(tree)), *when)


@as_change
def _set_modinfo(tree: Tree, modules: Mapping[str, Mapping[str, str]]) -> None:
    for name, fields in modules.items():
        for field in fields.items():
            set_modinfo(tree, name, *field)


# What the keys of a fault in a TOML file do; a file has further ones in the module of its name.
_CHANGES: dict[str, Callable[..., ChangeTree]] = {
    "files": _add_files,
    "links": _add_links,
    "directories": lambda paths: lambda tree: [*map(tree.directory, paths)],
    "remove": lambda paths: lambda tree: [tree.remove(path.format_map(_names(tree))) for path in paths],
    "deny": lambda path: lambda tree: tree.denied.add(path),
    "log": _log_lines,
    "unload": lambda names: unloaded(*names),
    "modinfo": _set_modinfo,
    "not_on_disk": lambda name: lambda tree: remove_module_file(tree, name),
    "loaded": lambda name: lambda tree: tree.live_modules.append(name),
    "journal": lambda messages: lambda tree: tree.journal.update(messages),
    "stop": lambda service: lambda tree: stop(tree, *service),
}


def described(
    area: str, functions: Mapping[str, Any], is_live: bool = False, **own: Callable[..., ChangeTree]
) -> Iterator[Fault]:
    """Yield the faults in AREA.toml, by name. Each has the options of `fault`, and what it changes, in order.

    `description`: fields of the node's description; `devices`: others in place of devices, "" removes one;
    `cmdline`: words that the kernel's command line gains; `node`: one of `functions`, which changes the
    description first; `does`: some of `functions`, which change the tree. Functions are named without their
    underscore: "a b", or ["a", 1] for what a(1) returns. Every other key names a function in _CHANGES or
    `own`, which makes a change of the tree of the value.
    """

    def named(names: str | list[Any]) -> list[Any]:
        if isinstance(names, str):
            return [functions[f"_{name}"] for name in names.split()]
        return [functions[f"_{names[0]}"](*names[1:])]

    for name, row in read_toml(__package__, f"{area}.toml").items():
        summary, fields = row.pop("summary"), row.pop("description", {})
        devices, words = row.pop("devices", {}), row.pop("cmdline", "")
        first = named(row.pop("node", ""))
        options = {key: row.pop(key) for key in ("on", "finds", "shows", "excludes") if key in row}
        changes = [
            change
            for key, value in row.items()
            for change in (named(value) if key == "does" else [(_CHANGES | own)[key](value)])
        ]
        description = partial(_changed, first, fields, devices, words)
        yield fault(name, summary, *changes, change_description=description, is_live=is_live, **options)


def _changed(
    first: list[ChangeDescription],
    fields: Mapping[str, Any],
    devices: Mapping[str, str],
    words: str,
    node: NodeDescription,
) -> NodeDescription:
    for change in first:
        node = change(node)
    changed: NodeDescription = with_fields(node, fields)
    if devices:
        by_name = change_devices(lambda device: devices.get(device.partition(" ")[2], device) or None)
        changed = change_devices(lambda device: devices.get(device, device))(by_name(changed))
        roots = (root for root in changed.root if root.switch or root.ports or root.flat)
        changed = replace(changed, root=tuple(roots))
    return replace(changed, cmdline=f"{changed.cmdline} {words}") if words else changed
