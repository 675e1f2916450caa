"""What `gdrtop setup` did to a simulated node: choices, results and commands, for the next command.

They are files below the user's cache directory, one folder a node, and all of it is made up. Without a home
directory they last as long as the program.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from probes.base.plan import FileChange
from probes.simulation.host import SimulatedHost
from tui.actions.audit_log import AuditFile, AuditLogFile, MemoryLog
from tui.actions.events import RunOutcome
from tui.actions.runner import file_commands
from tui.bandwidth.results_store import DiskResultsStore, MemoryResultsStore, ResultsStore
from tui.files.append_file import objects_of
from tui.files.setup_log import DiskSetupLog, SetupLog
from tui.files.xdg import simulated_directory


class SimulatedSetup:
    """The files of one simulated node."""

    def __init__(self, name: str) -> None:
        self.directory = simulated_directory(name)
        self.log: SetupLog = SetupLog()
        self.results: ResultsStore = MemoryResultsStore()
        self.actions: AuditFile = MemoryLog()
        if self.directory:
            choices = os.path.join(self.directory, "setup.jsonl")
            self.log = DiskSetupLog(choices, roots=os.path.join(self.directory, "roots.jsonl"))
            self.results = DiskResultsStore(self.directory)
            self.actions = AuditLogFile(os.path.join(self.directory, "actions.jsonl"))

    @property
    def is_used(self) -> bool:
        """Return whether an earlier command left something."""
        return bool(self.directory) and os.path.isdir(self.directory)

    def restore(self, host: SimulatedHost) -> None:
        """Run again what earlier commands ran on the node, and reboot it where they did."""
        for step in _done_steps(self.actions.lines()):
            argv = tuple(word for word in step.get("argv") or () if isinstance(word, str))
            path, text, kept = step.get("file"), step.get("text"), step.get("kept")
            commands: Sequence[tuple[tuple[str, ...], str]] = [(argv, "")] if argv else ()
            if isinstance(path, str) and (text is None or isinstance(text, str)):
                change = FileChange(path, text, kept if isinstance(kept, str) and text is None else "")
                commands = file_commands(host, change, "")
            for command, given in commands:
                host.perform(command, given)


def _done_steps(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the steps that were completed, oldest first; lines that are not gdrtop's are left out."""
    begun: dict[tuple[object, object], dict[str, Any]] = {}
    for line in objects_of(lines):
        key = (str(line.get("run")), str(line.get("step")))
        if line.get("event") == "step":
            begun[key] = line
        elif (
            line.get("event") == "step end" and line.get("outcome") == RunOutcome.DONE.value and key in begun
        ):
            yield begun.pop(key)
