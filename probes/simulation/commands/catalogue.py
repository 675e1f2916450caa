"""Every command that a simulated node obeys, by name.

Never obeyed, because gdrtop never runs them: reboot, dkms, update-initramfs, dracut, git, kubectl, mlxconfig,
mlxfwreset, package managers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from probes.base.text import printable
from probes.facts.system.tools import DIRECTORIES
from probes.host.protocol import Host
from probes.simulation.commands import asking, modprobe, nvidia, ports, setpci, system, systemctl
from probes.simulation.commands import coreutils as files
from probes.simulation.commands.command_result import Obeyed, Order, Performed, not_obeyed
from probes.simulation.node.tree import Tree

OBEYED: Mapping[str, Obeyed] = {
    **modprobe.COMMANDS,
    **systemctl.COMMANDS,
    **setpci.COMMANDS,
    **nvidia.COMMANDS,
    **ports.COMMANDS,
    **files.COMMANDS,
    **system.COMMANDS,
}


def perform(host: Host, tree: Tree, argv: Sequence[str], given: str, seconds: float) -> Performed:
    """Obeys a command, and changes the tree as a node would have changed."""
    performed = _perform(host, tree, argv, given, seconds)
    lines = (printable(part) for line in performed.lines for part in line.split("\n"))
    return replace(performed, lines=tuple(lines))


def _perform(host: Host, tree: Tree, argv: Sequence[str], given: str, seconds: float) -> Performed:
    if not argv:
        return not_obeyed("an empty command")
    directory, slash, name = argv[0].rpartition("/")
    obeyed = OBEYED.get(name)
    if slash and directory not in DIRECTORIES:
        return not_obeyed(argv[0])
    order = Order(host, tree, name, tuple(argv[1:]), given, seconds)
    if obeyed is not None:
        return obeyed(order)
    return asking.answer(order) or not_obeyed(argv[0])
