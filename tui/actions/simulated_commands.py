"""Run commands on a simulated node or a twin, in about the time that a real node takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from probes.simulation.commands.command_result import CommandResult as Performed
from tui.actions.local_commands import CommandResult
from tui.terminal.program_output import sanitized

_LINE_LIMIT = 4096
_LONGEST_WAIT_SECONDS = 1.5


class Performing(Protocol):
    """A simulated node, or a twin of a real one."""

    def perform(self, argv: Sequence[str], stdin: str = "") -> Performed:
        """Play a command that changes it."""


class SimulatedCommands:
    """A simulated node, where every user is root."""

    def __init__(
        self,
        host: Performing,
        wait: Callable[[float], object] = time.sleep,
        as_root: str = "on the simulated node",
    ) -> None:
        self._host, self._wait, self.as_root = host, wait, as_root

    def run(
        self, argv: Sequence[str], root: bool, text: str, on_line: Callable[[str], None]
    ) -> CommandResult:
        """Run a command, and pass on its lines with pauses."""
        del root
        performed = self._host.perform(argv, text)
        pause = min(_LONGEST_WAIT_SECONDS, performed.seconds) / (len(performed.lines) + 1)
        for line in performed.lines:
            self._wait(pause)
            on_line(sanitized(line, _LINE_LIMIT))
        self._wait(pause)
        return CommandResult(performed.exit_status, performed.seconds)
