"""Run commands on a simulated node, in about the time that a real node takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from probes.simulation.host import SimulatedHost
from tui.actions.local_commands import CommandResult
from tui.runtime.ansi_text import sanitized

_LINE_LIMIT = 4096
_LONGEST_WAIT_SECONDS = 1.5


class SimulatedCommands:
    """A simulated node, where every user is root."""

    as_root = "on the simulated node"

    def __init__(self, host: SimulatedHost, wait: Callable[[float], object] = time.sleep) -> None:
        self._host, self._wait = host, wait

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
