"""Every command that a simulated node supports, by name.

Not supported, because gdrtop never runs them: dkms, git, kubectl, mlxconfig, mlxfwreset. A reboot is
SimulatedHost's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from probes.base.text import printable
from probes.facts.system.tools import DIRECTORIES
from probes.host.protocol import Host
from probes.simulation.commands import coreutils, modprobe, nvidia, packages, ports, setpci, system, systemctl
from probes.simulation.commands.command_result import CommandResult, Handler, Invocation, unsupported
from probes.simulation.node.model.tree import Tree

HANDLERS: Mapping[str, Handler] = {
    **modprobe.COMMANDS,
    **systemctl.COMMANDS,
    **setpci.COMMANDS,
    **nvidia.COMMANDS,
    **ports.COMMANDS,
    **coreutils.COMMANDS,
    **packages.COMMANDS,
    **system.COMMANDS,
}


def perform(host: Host, tree: Tree, argv: Sequence[str], stdin: str, seconds: float) -> CommandResult:
    """Run a command and change the tree like a real node would change."""
    result = _perform(host, tree, argv, stdin, seconds)
    lines = (printable(part) for line in result.lines for part in line.split("\n"))
    return replace(result, lines=tuple(lines))


def _perform(host: Host, tree: Tree, argv: Sequence[str], stdin: str, seconds: float) -> CommandResult:
    if not argv:
        return unsupported("empty command")
    directory, slash, name = argv[0].rpartition("/")
    if slash and directory not in DIRECTORIES:
        return unsupported(argv[0])
    call = Invocation(host, tree, name, tuple(argv[1:]), stdin, seconds)
    handler = HANDLERS.get(name)
    if handler is not None:
        return handler(call)
    return system.query(call) or unsupported(argv[0])
