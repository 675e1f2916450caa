"""What a simulated node has around its devices: device files, processes, libraries, tools and network."""

from __future__ import annotations

from probes.simulation.node.device_files import grow_device_files
from probes.simulation.node.network import grow_network
from probes.simulation.node.processes import grow_processes
from probes.simulation.node.software import grow_software
from probes.simulation.node.tree import Tree

# Directories that any node has, and into which somebody may write.
_USUAL = (
    "/etc/default/grub.d",
    "/etc/modprobe.d",
    "/etc/modules-load.d",
    "/etc/sysctl.d",
    "/etc/systemd/system",
    "/etc/udev/rules.d",
    "/root",
    "/run/systemd/system",
    "/tmp",
    "/usr/local/sbin",
    "/var/lib",
    "/var/tmp",
)


def grow_surroundings(tree: Tree) -> None:
    """All of it."""
    for path in _USUAL:
        tree.directory(path)
    grow_device_files(tree, tree.live_modules)
    grow_processes(tree)
    grow_software(tree)
    grow_network(tree)
