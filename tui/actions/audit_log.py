"""The audit log: one JSON line when a run or step begins, and one when it ends.

A run without an end has an unknown outcome: gdrtop died during it, or it is still running.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from probes.base.frozen import frozen
from probes.base.plan import FileChange, Plan, Step
from probes.base.text import printable
from probes.plans.common import only_reads
from tui.actions.events import RunOutcome
from tui.files.append_file import AppendFile, objects_of
from tui.files.xdg import STATE, own_directory

ROOTS_LOG = "/var/log/gdrtop/actions.jsonl"
_READ_BYTES = 1 << 20
_WORD_LIMIT = 4096
_MOST_STEPS = 256
_RUNS = itertools.count(1)  # of this process, so that two runs in one second differ


class AuditError(Exception):
    """The log cannot be written, so nothing runs; the message names the file."""


def own_log(node: str = "") -> str:
    """Return the log of this user: root's below /var/log, a user's in the XDG state directory.

    `node`: what was done there over a connection.
    """
    log = ROOTS_LOG if os.geteuid() == 0 else os.path.join(own_directory(STATE), "actions.jsonl")
    return f"{log.removesuffix('.jsonl')}-{node}.jsonl" if node else log


class AuditLogFile(AppendFile):
    """A log on disk; everybody may read root's."""

    def __init__(self, path: str, owner: int | None = None) -> None:
        super().__init__(path, "the log", AuditError, _READ_BYTES, owner, all_may_read=os.geteuid() == 0)


class BestEffortLog:
    """A log for what must run even if it cannot be logged; `failure` says why it was not."""

    def __init__(self, file: AuditFile) -> None:
        self._file, self.failure = file, ""
        self.lines, self.why_unread = file.lines, file.why_unread

    def append(self, line: str) -> None:
        """Append a line if that is possible."""
        try:
            self._file.append(line)
        except AuditError as error:
            self.failure = f"not logged: {error}"


class MemoryLog:
    """The log of a simulated node, in memory."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def append(self, line: str) -> None:
        """Append a line."""
        self._lines.append(line)

    def lines(self) -> list[str]:
        """Return all lines."""
        return list(self._lines)

    def why_unread(self) -> str:
        """Return ""; memory can always be read."""
        return ""


AuditFile: TypeAlias = "AuditLogFile | MemoryLog"
"""Where the lines are stored, oldest first; AuditError if one cannot be appended."""


@frozen
class Actor:
    """Who runs something, and where."""

    host: str
    boot_id: str
    user: str  # "root (sudo by alice)"
    pid: int


@frozen
class PastStep:
    """A step of a past run."""

    why: str
    argv: tuple[str, ...]
    path: str  # of the changed file; "" for a command
    kept: str  # backup of the previous file; "" if there was none
    undo: tuple[str, ...]
    needs_root: bool
    outcome: RunOutcome
    exit_status: int | None
    seconds: float | None
    explanation: str
    group: str = ""


@frozen
class PastRun:
    """A run of an action in the log."""

    id: str
    at: float  # seconds since 1970
    actor: Actor
    action: str
    title: str
    outcome: RunOutcome
    why: str
    steps: tuple[PastStep, ...]
    disturbs: str = ""  # by its plan; the undo disturbs the same
    measured: str = ""  # what it changed, by bandwidth tests before and after it


class Audit:
    """Write runs to the log."""

    def __init__(self, file: AuditFile | BestEffortLog, actor: Actor, clock: Any = time.time) -> None:
        self._file, self._actor, self._clock = file, actor, clock
        self._run = ""

    def begin(self, action: str, plan: Plan) -> None:
        """Log the begin of a run; AuditError if the log cannot be written."""
        self._run = f"{self._clock():.0f}-{self._actor.pid}-{next(_RUNS)}"
        actor = self._actor
        who = {"host": actor.host, "boot_id": actor.boot_id, "user": actor.user, "pid": actor.pid}
        what = {"action": action, "title": plan.title, "steps": len(plan.steps), "disturbs": plan.disturbs}
        self._write("begin", {**who, **what})

    def begin_step(self, number: int, step: Step, kept: str) -> None:
        """Log the begin of a step; `kept` is the backup of the file that it changes."""
        fields: dict[str, Any] = {"step": number, "why": step.why, "needs_root": step.needs_root}
        if step.file is not None:
            fields |= {"file": step.file.path, "text": step.file.text, "kept": kept}
        else:
            fields |= {"argv": list(step.argv), "undo": list(step.undo), "group": step.group}
        self._write("step", fields)

    def end_step(
        self, number: int, outcome: RunOutcome, exit_status: int | None, seconds: float, explanation: str
    ) -> None:
        """Log the end of a step."""
        fields = {"step": number, "outcome": outcome.value, "exit_status": exit_status}
        self._write("step end", {**fields, "seconds": round(seconds, 3), "explanation": explanation})

    def end(self, outcome: RunOutcome, why: str) -> None:
        """Log the end of the run."""
        self._write("end", {"outcome": outcome.value, "why": why})

    def _write(self, what: str, fields: dict[str, Any]) -> None:
        at = self._clock()
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
        line = {"time": when, "at": round(at, 3), "run": self._run, "event": what, **fields}
        self._file.append(json.dumps(line))


# Reading: bad lines must never stop the screen.


@dataclass
class _Reading:
    """A run while its lines are read."""

    begin: dict[str, Any]
    steps: dict[int, dict[str, Any]] = field(default_factory=dict)
    ends: dict[int, dict[str, Any]] = field(default_factory=dict)
    end: dict[str, Any] | None = None
    measured: str = ""


def measured_line(run: str, text: str, at: float) -> str:
    """Return the line that adds what bandwidth tests say to a run that ended."""
    return json.dumps({"at": round(at, 3), "run": run, "event": "measured", "text": text})


def past_runs(lines: Iterable[str]) -> tuple[PastRun, ...]:
    """Return the runs in a log, newest first; skip lines that are not gdrtop's."""
    runs: dict[str, _Reading] = {}
    for line in objects_of(lines):
        run, event, number = _text(line, "run"), line.get("event"), line.get("step")
        if event == "begin":
            runs[run] = _Reading(line)
        elif run not in runs:
            continue
        elif event == "end":
            runs[run].end = line
        elif event == "measured":
            runs[run].measured = _text(line, "text")
        elif isinstance(number, int) and 0 < number <= _MOST_STEPS:
            (runs[run].steps if event == "step" else runs[run].ends)[number] = line
    return tuple(_past_run(run, read) for run, read in reversed(runs.items()))


def _past_run(run: str, read: _Reading) -> PastRun:
    begin, end = read.begin, read.end or {}
    host, boot_id, user = (_text(begin, name) for name in ("host", "boot_id", "user"))
    pid = begin.get("pid")
    return PastRun(
        id=run,
        at=_number(begin, "at") or 0.0,
        actor=Actor(host, boot_id, user, pid if isinstance(pid, int) else 0),
        action=_text(begin, "action"),
        title=_text(begin, "title"),
        outcome=_outcome(end),
        why=_text(end, "why"),
        steps=tuple(_past_step(line, read.ends.get(place, {})) for place, line in sorted(read.steps.items())),
        disturbs=_text(begin, "disturbs"),
        measured=read.measured,
    )


def _past_step(line: dict[str, Any], end: dict[str, Any]) -> PastStep:
    status = end.get("exit_status")
    return PastStep(
        why=_text(line, "why"),
        argv=_words(line, "argv"),
        path=_text(line, "file"),
        kept=_text(line, "kept"),
        undo=_words(line, "undo"),
        needs_root=line.get("needs_root") is not False,
        outcome=_outcome(end),
        exit_status=status if isinstance(status, int) else None,
        seconds=_number(end, "seconds"),
        explanation=_text(end, "explanation"),
        group=_text(line, "group"),
    )


def _outcome(line: dict[str, Any]) -> RunOutcome:
    value = line.get("outcome")
    return next((outcome for outcome in RunOutcome if outcome.value == value), RunOutcome.UNKNOWN)


def _text(line: dict[str, Any], name: str) -> str:
    value = line.get(name)
    return printable(value, _WORD_LIMIT) if isinstance(value, str) else ""


def _number(line: dict[str, Any], name: str) -> float | None:
    value = line.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e12:
        return None
    return float(value)


def _words(line: dict[str, Any], name: str) -> tuple[str, ...]:
    value = line.get(name)
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        return ()
    return tuple(printable(word, _WORD_LIMIT) for word in value[:64])


# Undo


def undo_plan(run: PastRun, boot_id: str) -> Plan | str:
    """Return the plan that undoes a run, its last step first, or why there is none.

    The effect of commands ends with the next boot; after one, only files are restored.
    """
    done = [step for step in run.steps if step.outcome is RunOutcome.DONE]
    same_boot = run.actor.boot_id == boot_id
    undone = (_undo_step(past) for past in reversed(done) if same_boot or past.path)
    steps = tuple(step for step in undone if step is not None)
    if steps:
        return Plan(f"Undo: {run.title}", steps, disturbs=run.disturbs)
    if not done:
        return "none of its steps was completed"
    if all(only_reads(past.argv) for past in done):
        return "its steps only read, so there is nothing to undo"
    return "none of its steps can be undone" if same_boot else "the node has rebooted since"


def _undo_step(past: PastStep) -> Step | None:
    if past.path:
        why = f"Restore {past.path}" if past.kept else f"Remove {past.path}, which did not exist before"
        return Step(why, file=FileChange(past.path, None, past.kept), needs_root=past.needs_root)
    return Step(f"Undo: {past.why}", past.undo, past.needs_root, group=past.group) if past.undo else None


def is_undone(run: PastRun, runs: Iterable[PastRun]) -> bool:
    """Return whether a later run has undone this one."""
    return any(later.action == f"undo:{run.id}" and later.outcome is RunOutcome.DONE for later in runs)
