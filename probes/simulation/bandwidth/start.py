"""Start a test on a simulated node: which program it is, and on which of the two nodes it runs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from probes.base.text import printable
from probes.facts.system.tool_names import TOOL_OF
from probes.simulation.bandwidth.command_line import parse_command, split_ssh
from probes.simulation.bandwidth.node_pair import PEER_NAMES, SimulatedNode
from probes.simulation.bandwidth.playback import Script, SimulatedTest, ended
from probes.simulation.commands.command_result import CommandResult

_FAILS_SECONDS = 0.02
_SSH_SECONDS = 0.35
_SSH_FAILED = 255


def start(node: SimulatedNode, argv: Sequence[str], at: float | None = None) -> SimulatedTest:
    """Start a command at a moment of the clock: now, if none is given."""
    at = node.clock() if at is None else at
    if argv and argv[0].rpartition("/")[2] == "ssh":
        return _start_by_ssh(node, argv[1:], at)
    command = parse_command(node.tree, argv)
    if isinstance(command, CommandResult):
        lines = (printable(line) for line in command.lines)
        return node.run(ended(at + _FAILS_SECONDS, command.exit_status, *lines))
    module = f"probes.simulation.bandwidth.{TOOL_OF[command.program].replace('-', '_')}"
    test = import_module(module).start(node, command, at)
    assert isinstance(test, SimulatedTest)
    return test


def _start_by_ssh(node: SimulatedNode, words: Sequence[str], at: float) -> SimulatedTest:
    remote = split_ssh(words)
    if remote is None:
        return node.run(ended(at, _SSH_FAILED, "usage: ssh [-46AaCfGgKkMNnqsTtVvXxYy] destination"))
    host, command = remote
    far, at = node.named(host), at + _SSH_SECONDS
    if far is None:
        unknown = f"ssh: Could not resolve hostname {printable(host, 253)}: Name or service not known"
        hint = f"(simulated: the other node is {' or '.join(PEER_NAMES)})"
        return node.run(ended(at, _SSH_FAILED, f"{unknown} {hint}"))
    return node.run(Script((), at)) if command == ("true",) else start(far, command, at)
