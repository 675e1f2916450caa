"""Runs a plan that a person has confirmed, step by step, and logs each; nothing else changes a node.

No shell; absolute paths from the trusted directories; a clean environment; output through a pseudo-terminal
of its own, so that it comes line by line. A step under way is never killed: it ends, or it is reported as
still running, and nothing after it is begun.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from probes.base.plan import FileChange, Plan, Step
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel.log import newest_lines
from probes.facts.kernel.modprobe_errors import explain
from probes.host.command import TRUSTED_PATH, find_command
from probes.host.protocol import Host
from tui.actions.audit_log import Audit, AuditError
from tui.actions.events import Event, Outcome, Printed, RunBegan, RunEnded, StepBegan, StepEnded
from tui.actions.manual_steps import left_to_do, runnable, why_by_hand
from tui.actions.verify_step import read_back
from tui.runtime.ansi_text import without_colours
from tui.runtime.pty_reader import TerminalReader

STEP_SECONDS = 300.0  # openibd's restart takes one or two minutes on a big node
_LINE_LIMIT = 4096
_LINES_LIMIT = 20_000  # of one step; what comes after is counted, not kept
_MOST_KERNEL_LINES = 12
# sudo's own words and sudo-rs's, before anything has run.
_PASSWORD_WANTED = re.compile(
    r"sudo(?:-rs)?: (?:a password is required|interactive authentication is required|a terminal is required)"
)


@dataclass(frozen=True)
class Ended:
    """How a command ended; no status: it did not, or could not be begun, and `why` says so."""

    exit_status: int | None
    seconds: float
    why: str = ""
    still_running: bool = False
    wants_password: bool = False


class Commands(Protocol):
    """What runs one command on a node: this machine, or a simulated one."""

    as_root: str  # how a step that needs root gets it, to be shown

    def run(self, argv: Sequence[str], root: bool, given: str, hear: Callable[[str], None]) -> Ended:
        """Runs a command to its end, and hands each line on as it comes."""


class LocalCommands:
    """This machine. `keep` are descriptors that a child holds open as long as it runs: the lock's."""

    def __init__(self, keep: Sequence[int] = (), seconds: float = STEP_SECONDS) -> None:
        self._keep, self._seconds = tuple(keep), seconds
        self._is_root = os.geteuid() == 0
        self.as_root = "as root" if self._is_root else "by sudo"
        self.given_up = threading.Event()

    def run(self, argv: Sequence[str], root: bool, given: str, hear: Callable[[str], None]) -> Ended:
        """Runs a command found on the trusted path, with sudo where it needs root and we are not."""
        program: list[str] = []
        for name in ("sudo", argv[0]) if root and not self._is_root else (argv[0],):
            path = find_command(name)
            if path is None:
                return Ended(None, 0.0, f"{name} is not installed")
            # -n: what it asks, it asks through `ask_for_password`, on the real terminal.
            program += [path, "-n", "--"] if name == "sudo" else [path]
        began = time.monotonic()
        master, slave = pty.openpty()
        output = TerminalReader(master, _LINE_LIMIT)
        try:
            process = self._start([*program, *argv[1:]], slave, bool(given))
        except OSError as error:
            output.close()
            return Ended(None, 0.0, f"{program[0]}: {error.strerror}")
        finally:
            os.close(slave)
        try:
            _give(process, given)
            return self._follow(process, output, began, hear, root and not self._is_root)
        finally:
            output.close()

    def _start(self, program: list[str], output: int, with_input: bool) -> subprocess.Popen[bytes]:
        # A process group of its own: Ctrl-C and a hangup at our terminal are for us. Not a session of its
        # own: sudo's tickets belong to a session and its terminal.
        group: dict[str, Any] = (
            {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}
        )
        return subprocess.Popen(
            program,
            stdin=subprocess.PIPE if with_input else subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={"PATH": ":".join(TRUSTED_PATH), "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"},
            cwd="/",
            umask=0o022,
            pass_fds=self._keep,
            **group,
        )

    def _follow(
        self,
        process: subprocess.Popen[bytes],
        output: TerminalReader,
        began: float,
        hear: Callable[[str], None],
        by_sudo: bool,
    ) -> Ended:
        """Reads what it prints until it ends; children that it leaves behind may go on printing to nobody."""
        count = 0
        wants_password = False
        while True:
            ended = process.poll() is not None
            lines = output.read(0.0 if ended else 0.05)
            for line in lines if lines is not None else output.rest() if ended else ():
                wants_password = wants_password or bool(
                    by_sudo and not count and _PASSWORD_WANTED.match(line)
                )
                count += 1
                if count <= _LINES_LIMIT:
                    hear(line)
            took = time.monotonic() - began
            if ended and lines is None:
                if count > _LINES_LIMIT:
                    hear(f"… and {count - _LINES_LIMIT} more lines")
                status = process.returncode
                why = f"it was ended by signal {-status}" if status < 0 else ""
                return Ended(status, took, why, wants_password=wants_password and status == 1)
            if not ended and (took > self._seconds or self.given_up.is_set()):  # though it prints without end
                told = f"it is still running after {took:.0f} s, as process {process.pid}"
                return Ended(None, took, told, still_running=True)


def _give(process: subprocess.Popen[bytes], given: str) -> None:
    if process.stdin is not None:
        try:
            process.stdin.write(given.encode("utf-8", "replace"))
            process.stdin.close()
        except OSError:  # it ended without reading: its exit status says why
            return


def root_out_of_reach() -> str:
    """Why no step that needs root can be run by this user; "" where root or sudo is there."""
    if os.geteuid() == 0 or find_command("sudo") is not None:
        return ""
    return "it needs root, and sudo is not installed; run the script as root instead"


def ask_for_password() -> bool:
    """Has sudo ask on this process's own terminal; whether it was satisfied."""
    sudo = find_command("sudo")
    return sudo is not None and subprocess.run([sudo, "-v"], cwd="/").returncode == 0


class Runner:
    """Runs one plan; `run` blocks, so a screen calls it in a thread."""

    def __init__(
        self,
        host: Host,
        commands: Commands,
        audit: Audit,
        hear: Callable[[Event], None],
        get_password: Callable[[], bool] = lambda: False,
    ) -> None:
        self._host, self._commands, self._audit = host, commands, audit
        self._hear, self._get_password = hear, get_password
        self._stopped = ""

    def stop(self, why: str) -> None:
        """Begin no further step; from any thread."""
        self._stopped = self._stopped or why

    def run(self, action: str, plan: Plan) -> RunEnded:
        """Run the steps that are not manual, in order, until one fails or the run is stopped."""
        steps = runnable(plan)
        ended = self._run(action, plan, steps)
        self._hear(ended)
        return ended

    def _run(self, action: str, plan: Plan, steps: tuple[Step, ...]) -> RunEnded:
        if not steps:
            return RunEnded(Outcome.REFUSED, "every step is manual", plan.steps)
        try:
            self._audit.begin(action, plan)
        except AuditError as error:
            return RunEnded(Outcome.REFUSED, f"nothing was begun: {error}", plan.steps)
        self._hear(RunBegan(plan, self._commands.as_root))
        ended = RunEnded(Outcome.DONE)
        for number, step in enumerate(steps, 1):
            if self._stopped:
                ended = RunEnded(
                    Outcome.STOPPED, f"{self._stopped}; the rest was not begun", plan.steps[number - 1 :]
                )
                break
            try:
                outcome, why = self._step(number, step)
            except AuditError as error:
                outcome, why = Outcome.FAILED, str(error)
                self._hear(StepEnded(number, outcome, None, 0.0, why))
            if outcome is not Outcome.DONE:
                ended = RunEnded(outcome, f"step {number}: {why}", plan.steps[number:])
                break
        left = left_to_do(plan)
        if ended.outcome is Outcome.DONE and left:
            why = "" if left[0].is_instruction else f": {why_by_hand(left[0])}"
            ended = RunEnded(Outcome.LEFT, f"the rest is yours{why}", left)
        try:
            self._audit.end(ended.outcome, ended.why)
        except AuditError as error:
            return replace(ended, why=f"{ended.why}; {error}".lstrip("; "))
        return ended

    def _step(self, number: int, step: Step) -> tuple[Outcome, str]:
        """Runs one step; AuditError before it where it could not be logged."""
        self._hear(StepBegan(number, step))
        kept = self._place_to_keep(step.file) if step.file is not None else ""
        self._audit.begin_step(number, step, kept)
        before = newest_lines(self._host)
        printed: list[str] = []

        def hear(line: str) -> None:
            printed.append(without_colours(line))
            self._hear(Printed(line))

        ended = Ended(0, 0.0)
        seconds = 0.0
        kernel_lines: Maybe[tuple[str, ...]] = ()
        for argv, given in _file_commands(self._host, step.file, kept) if step.file else [(step.argv, "")]:
            ended = self._command(argv, given, step, hear)
            seconds += ended.seconds
            if ended.exit_status != 0:
                break
        if ended.exit_status == 0:
            ended = self._read_back(step, ended)
        if ended.exit_status == 0:
            outcome, why = Outcome.DONE, ""
        else:
            outcome = Outcome.STILL_RUNNING if ended.still_running else Outcome.FAILED
            kernel_lines = _appended(before, newest_lines(self._host))
            why = ended.why or explain(step.argv, printed, kernel_lines) or f"exit status {ended.exit_status}"
        explanation = "" if why == f"exit status {ended.exit_status}" else why
        # The screen hears of it even where the log can no longer be written.
        self._hear(StepEnded(number, outcome, ended.exit_status, seconds, explanation, kernel_lines))
        self._audit.end_step(number, outcome, ended.exit_status, seconds, explanation)
        return outcome, why

    def _read_back(self, step: Step, ended: Ended) -> Ended:
        """The end of a step, which is a failure where what it set is not set."""
        asked = read_back(step)
        if asked is None:
            return ended
        answer: list[str] = []
        self._commands.run(asked.argv, step.needs_root, "", lambda line: answer.append(without_colours(line)))
        told = asked.complaint(answer)
        return replace(ended, exit_status=None, why=told) if told else ended

    def _command(self, argv: Sequence[str], given: str, step: Step, hear: Callable[[str], None]) -> Ended:
        ended = self._commands.run(argv, step.needs_root, given, hear)
        if not ended.wants_password:
            return ended
        if not self._get_password():
            return replace(
                ended,
                why="sudo needs a password and did not get one: run gdrtop as root, or use the script",
            )
        again = self._commands.run(argv, step.needs_root, given, hear)
        if again.wants_password:
            told = "sudo asks for a password each time: run gdrtop as root, or use the script"
            return replace(again, why=told)
        return again

    def _place_to_keep(self, change: FileChange) -> str:
        """Where the file as it is now is kept; "" where there is none."""
        there = self._host.size(change.path)
        if isinstance(there, Unknown) and there.reason is Reason.NOT_THERE:
            return ""
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self._host.wall_clock()))
        return f"{change.path}.before-{stamp}"


def _file_commands(host: Host, change: FileChange, kept: str) -> list[tuple[tuple[str, ...], str]]:
    """A file written beside its place and moved there whole, so that nobody ever reads half of it."""
    commands: list[tuple[tuple[str, ...], str]] = []
    if kept:
        commands.append((("cp", "-p", "--", change.path, kept), ""))
    if change.text is None:
        last = ("mv", "-T", "--", change.kept, change.path) if change.kept else ("rm", "--", change.path)
        return [*commands, (last, "")]
    new = f"{change.path}.new"
    folder = change.path.rpartition("/")[0]
    if folder and isinstance(host.names(folder), Unknown):
        commands.append((("mkdir", "-p", "--", folder), ""))
    return [
        *commands,
        (("tee", "--", new), change.text),
        (("sync", "--", new), ""),
        (("mv", "-T", "--", new, change.path), ""),
    ]


def _appended(before: Maybe[tuple[str, ...]], after: Maybe[tuple[str, ...]]) -> Maybe[tuple[str, ...]]:
    """The newest lines of the kernel log that have come since."""
    if isinstance(before, Unknown) or isinstance(after, Unknown):
        return after if isinstance(after, Unknown) else before
    new: list[str] = []
    for line in reversed(after):
        if before and line == before[-1]:
            break
        new.append(line)
    return tuple(reversed(new[:_MOST_KERNEL_LINES]))
