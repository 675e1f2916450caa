"""What a simulated node has around its devices: device files, processes, libraries and tools."""

from __future__ import annotations

from probes.simulation.device_files import grow_device_files
from probes.simulation.processes import grow_processes
from probes.simulation.software import grow_software
from probes.simulation.tree import Tree


def grow_surroundings(tree: Tree) -> None:
    """All of it."""
    grow_device_files(tree, tree.live_modules)
    grow_processes(tree)
    grow_software(tree)
