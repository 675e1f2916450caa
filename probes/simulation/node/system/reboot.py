"""Reboot a simulated node: what is on disk stays, everything else starts as the boot configuration says."""

from __future__ import annotations

import re
from dataclasses import replace

from probes.simulation.node.model.description import NodeDescription
from probes.simulation.node.model.tree import Tree
from probes.simulation.node.system.system import GRUB_CONFIG, write_grub_config

_ON_DISK = ("/boot", "/etc", "/home", "/lib", "/opt", "/root", "/usr", "/var")
_GRUB = re.compile(r'^GRUB_CMDLINE_LINUX(?:_DEFAULT)?="((?:[^"\\\n]|\\.)*)"', re.M)
_ENTRY = re.compile(r"^options .* ro (.*)$", re.M)
_PASSTHROUGH = {"iommu=pt", "iommu.passthrough=1"}


def description_after(tree: Tree) -> NodeDescription:
    """Return the description with the kernel command line that the boot loader's files have now.

    As if the boot loader's configuration had been written after the last edit.
    """
    node = tree.description
    options = _options(tree)
    if options is None:
        return node
    head = node.cmdline.partition(" ro ")[0]
    passes = bool(_PASSTHROUGH & set(options.split()))
    iommu = "identity" if passes and node.iommu else node.iommu
    return replace(node, cmdline=f"{head} ro {options}".strip(), iommu=iommu)


def _options(tree: Tree) -> str | None:
    """Return the options of the boot entry, else those of /etc/default/grub; None: neither has any."""
    entries = sorted(path for path in tree.files if path.startswith("/boot/loader/entries/"))
    for path in entries:
        match = _ENTRY.search(tree.text(path))
        if match is not None:
            return match[1]
    below = sorted(path for path in tree.files if path.startswith("/etc/default/grub.d/"))
    found: str | None = None
    for path in ("/etc/default/grub", *below):
        for match in _GRUB.finditer(tree.text(path)):
            value = match[1].replace('\\"', "")  # the shell of grub.cfg takes the quotes away
            found = value.replace("$GRUB_CMDLINE_LINUX", found or "").strip()
    return found


def keep_disk(tree: Tree, earlier: Tree) -> None:
    """Replace what is on the disk of a new tree by what was on the earlier one's."""
    for top in _ON_DISK:
        if tree.is_there(top):
            tree.remove(top)
    for path in list(earlier.directories):
        if _is_on_disk(path):
            tree.directory(path)
    for path, target in earlier.links.items():
        if _is_on_disk(path):
            tree.link(path, target)
    for path, content in earlier.files.items():
        if _is_on_disk(path):
            tree.add(path, content)
    if earlier.is_there(GRUB_CONFIG):
        write_grub_config(tree)
    # Answers about files on disk, and what firmware and shim remember.
    tree.commands["modinfo"] = earlier.commands["modinfo"]
    tree.refusals = earlier.refusals


def _is_on_disk(path: str) -> bool:
    return path.startswith(tuple(f"{top}/" for top in _ON_DISK)) or path in _ON_DISK
