"""Commands on a simulated node: obeyed by its tree alone, in about the time that a real node takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from probes.simulation.host import SimulatedHost
from tui.actions.runner import Ended
from tui.runtime.ansi_text import harmless

_LINE_LIMIT = 4096
_LONGEST_WAIT_SECONDS = 1.5  # nobody learns anything from waiting longer


class SimulatedCommands:
    """A simulated node; everybody is root on it."""

    as_root = "on the simulated node"

    def __init__(self, host: SimulatedHost, wait: Callable[[float], object] = time.sleep) -> None:
        self._host, self._wait = host, wait

    def run(self, argv: Sequence[str], root: bool, given: str, hear: Callable[[str], None]) -> Ended:
        """Has the simulated node obey a command."""
        del root
        performed = self._host.perform(argv, given)
        pause = min(_LONGEST_WAIT_SECONDS, performed.seconds) / (len(performed.lines) + 1)
        for line in performed.lines:
            self._wait(pause)
            hear(harmless(line, _LINE_LIMIT))
        self._wait(pause)
        return Ended(performed.exit_status, performed.seconds)
