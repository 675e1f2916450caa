"""Rehearse a plan: run its steps on a simulated twin of the node, and judge the twin afterwards.

The same runner runs the same steps as for real. Nothing of the node changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from probes.base.frozen import frozen
from probes.base.plan import Plan
from probes.base.unknown import Unknown
from probes.checks.judgment import Judgment, judge
from probes.host.protocol import Host
from probes.live.events.conditions import SEEN_AT_ONCE
from probes.live.job_examination import examine_with_jobs
from probes.setup.twin.build import make_twin
from probes.simulation.commands.command_result import CommandResult as Performed
from probes.snapshot.examination import Examination
from tui.actions.audit_log import Actor, Audit, MemoryLog
from tui.actions.events import RunEnded, RunEvent
from tui.actions.local_commands import CommandResult
from tui.actions.runner import Runner
from tui.terminal.program_output import sanitized

# Run commands on a simulated node or a twin, in about the time that a real node takes.

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


@frozen
class Rehearsal:
    """How a plan ended on the twin, and how the twin is afterwards."""

    ended: RunEnded
    examination: Examination
    judgment: Judgment
    not_rehearsed: tuple[str, ...]  # commands that the twin could not play, and why; assumed to succeed


def rehearse(
    host: Host,
    examination: Examination,
    action: str,
    plan: Plan,
    on_event: Callable[[RunEvent], None] = lambda event: None,
) -> Rehearsal:
    """Run a plan on a twin of the examined node; blocks about as long as two examinations take."""
    twin = make_twin(host, examination)
    commands = SimulatedCommands(twin, wait=lambda seconds: None, as_root="on a simulated copy of this node")
    audit = Audit(MemoryLog(), Actor("twin", "", "", 0), host.wall_clock)
    ended = Runner(twin, commands, audit, on_event).run(action, plan)
    after = _with_watched(examine_with_jobs(twin, before=examination), examination)
    return Rehearsal(ended, after, judge(after), tuple(twin.not_rehearsed))


def _with_watched(after: Examination, before: Examination) -> Examination:
    """Return the twin's examination with what only watching the node itself has shown."""
    now, then = before.watched, after.watched
    if isinstance(now, Unknown) or isinstance(then, Unknown):
        return after
    kept = (condition for condition in now.conditions if condition.check not in SEEN_AT_ONCE)
    seen = (condition for condition in then.conditions if condition.check in SEEN_AT_ONCE)
    watched = replace(then, seconds=now.seconds, job_seconds=now.job_seconds, conditions=(*seen, *kept))
    return replace(after, watched=watched)
