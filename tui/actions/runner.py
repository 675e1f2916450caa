"""Run a confirmed plan step by step, and log each step.

A running step is never killed: it ends, or it is reported as still running and no further step begins.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from probes.base.frozen import frozen
from probes.base.plan import FileChange, Plan, Step, sentences
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel.log import newest_lines
from probes.facts.kernel.modprobe_errors import explain
from probes.host.protocol import Host
from tui.actions.audit_log import Audit, AuditError
from tui.actions.events import Printed, RunBegan, RunEnded, RunEvent, RunOutcome, StepBegan, StepEnded
from tui.actions.local_commands import CommandResult, Commands
from tui.actions.manual_steps import ALL_MANUAL, left_to_do, runnable, why_manual
from tui.terminal.program_output import without_colors

_MOST_KERNEL_LINES = 12

# setpci(8): REGISTER=VALUE:MASK, both hexadecimal; VALUE alone sets the whole register.
_SETTING = re.compile(r"([A-Za-z0-9_+.@]{1,40})=([0-9a-fA-F]{1,8})(?::([0-9a-fA-F]{1,8}))?")


class Runner:
    """Run one plan; `run` blocks, so screens call it in a thread."""

    def __init__(
        self,
        host: Host,
        commands: Commands,
        audit: Audit,
        on_event: Callable[[RunEvent], None],
        get_password: Callable[[], bool] = lambda: False,
    ) -> None:
        self._host, self._commands, self._audit = host, commands, audit
        self._on_event, self._get_password = on_event, get_password
        self._stopped = ""

    def stop(self, why: str) -> None:
        """Begin no further step; may be called from any thread."""
        self._stopped = self._stopped or why

    def run(self, action: str, plan: Plan) -> RunEnded:
        """Run the steps that are not manual, in order, until one fails or the run is stopped."""
        steps = runnable(plan)
        ended = self._run(action, plan, steps)
        self._on_event(ended)
        return ended

    def _run(self, action: str, plan: Plan, steps: tuple[Step, ...]) -> RunEnded:
        if not steps:
            return RunEnded(RunOutcome.REFUSED, ALL_MANUAL, plan.steps)
        try:
            self._audit.begin(action, plan)
        except AuditError as error:
            return RunEnded(RunOutcome.REFUSED, f"nothing was run: {error}", plan.steps)
        self._on_event(RunBegan(plan, self._commands.as_root))
        ended = RunEnded(RunOutcome.DONE)
        for number, step in enumerate(steps, 1):
            if self._stopped:
                why = f"{self._stopped}; the remaining steps were not run"
                ended = RunEnded(RunOutcome.STOPPED, why, plan.steps[number - 1 :])
                break
            try:
                outcome, why = self._step(number, step)
            except AuditError as error:
                outcome, why = RunOutcome.FAILED, str(error)
                self._on_event(StepEnded(number, outcome, None, 0.0, why))
            if outcome is not RunOutcome.DONE:
                ended = RunEnded(outcome, f"step {number}: {why}", plan.steps[number:])
                break
        left = left_to_do(plan)
        if ended.outcome is RunOutcome.DONE and left:
            why = "" if left[0].is_instruction else sentences(why_manual(left[0], plan.is_simulated))
            ended = RunEnded(RunOutcome.LEFT, why, left)
        try:
            self._audit.end(ended.outcome, ended.why)
        except AuditError as error:
            return replace(ended, why=f"{ended.why}; {error}".lstrip("; "))
        return ended

    def _step(self, number: int, step: Step) -> tuple[RunOutcome, str]:
        """Run one step; AuditError if it could not be logged, so that it did not run."""
        self._on_event(StepBegan(number, step))
        backup = self._backup_path(step.file) if step.file is not None else ""
        self._audit.begin_step(number, step, backup)
        before = newest_lines(self._host)
        printed: list[str] = []

        def on_line(line: str) -> None:
            printed.append(without_colors(line))
            self._on_event(Printed(line))

        result = CommandResult(0, 0.0)
        seconds = 0.0
        kernel_lines: Maybe[tuple[str, ...]] = ()
        for argv, text in file_commands(self._host, step.file, backup) if step.file else [(step.argv, "")]:
            result = self._command(argv, text, step, on_line)
            seconds += result.seconds
            if result.exit_status != 0:
                break
        if result.exit_status == 0:
            result = self._verify(step, result)
        status = f"exit status {result.exit_status}"
        if result.exit_status == 0:
            outcome, why = RunOutcome.DONE, ""
        else:
            outcome = RunOutcome.STILL_RUNNING if result.still_running else RunOutcome.FAILED
            kernel_lines = _new_lines(before, newest_lines(self._host))
            why = result.why or explain(step.argv, printed, kernel_lines) or status
        explanation = "" if why == status else why
        # The screen shows the end even if the log can no longer be written.
        self._on_event(StepEnded(number, outcome, result.exit_status, seconds, explanation, kernel_lines))
        self._audit.end_step(number, outcome, result.exit_status, seconds, explanation)
        return outcome, why

    def _verify(self, step: Step, result: CommandResult) -> CommandResult:
        """Return the result of a step, a failure if the register that it wrote has another value."""
        check = _register_check(step)
        if check is None:
            return result
        answer: list[str] = []
        self._commands.run(check.argv, step.needs_root, "", lambda line: answer.append(without_colors(line)))
        problem = check.problem(answer)
        return replace(result, exit_status=None, why=problem) if problem else result

    def _command(
        self, argv: Sequence[str], text: str, step: Step, on_line: Callable[[str], None]
    ) -> CommandResult:
        result = self._commands.run(argv, step.needs_root, text, on_line)
        if not result.wants_password:
            return result
        if not self._get_password():
            why = "sudo needs a password, and none was given; run gdrtop as root, or use the script"
            return replace(result, why=why)
        again = self._commands.run(argv, step.needs_root, text, on_line)
        if again.wants_password:
            why = "sudo asks for a password every time; run gdrtop as root, or use the script"
            return replace(again, why=why)
        return again

    def _backup_path(self, change: FileChange) -> str:
        """Return where the existing file is backed up; "" if there is none."""
        size = self._host.size(change.path)
        if isinstance(size, Unknown) and size.reason is Reason.NOT_THERE:
            return ""
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self._host.wall_clock()))
        return f"{change.path}.before-{stamp}"


def file_commands(host: Host, change: FileChange, backup: str) -> list[tuple[tuple[str, ...], str]]:
    """Return the commands, with their input, that write a file beside its place and then move it there."""
    commands: list[tuple[tuple[str, ...], str]] = []
    if backup:
        commands.append((("cp", "-p", "--", change.path, backup), ""))
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


def _new_lines(before: Maybe[tuple[str, ...]], after: Maybe[tuple[str, ...]]) -> Maybe[tuple[str, ...]]:
    """Return the lines that the kernel has logged since, at most twelve."""
    if isinstance(before, Unknown) or isinstance(after, Unknown):
        return after if isinstance(after, Unknown) else before
    new: list[str] = []
    for line in reversed(after):
        if before and line == before[-1]:
            break
        new.append(line)
    return tuple(reversed(new[:_MOST_KERNEL_LINES]))


# setpci exits with 0 even if the register was not written


@frozen
class _RegisterCheck:
    """A register that a step has written, and how to read it back."""

    argv: tuple[str, ...]
    value: int
    mask: int

    def problem(self, printed: Sequence[str]) -> str:
        """Return what is wrong with the answer, or "" if the register has the new value."""
        text = next(
            (line.strip() for line in reversed(printed) if re.fullmatch(r"[0-9a-fA-F]+", line.strip())), ""
        )
        if not text:
            return "setpci exited with 0, but the register cannot be read back; is the function still there?"
        now = int(text[:8], 16)
        if (now ^ self.value) & self.mask == 0:
            return ""
        return (
            f"setpci exited with 0, but the register was not written and still reads {text}"
            " (kernel lockdown, or the hardware does not allow it)"
        )


def _register_check(step: Step) -> _RegisterCheck | None:
    """Return what to read after a step, or None if its exit status is enough."""
    if len(step.argv) < 2 or step.argv[0] != "setpci":
        return None
    setting = _SETTING.fullmatch(step.argv[-1])
    if setting is None:
        return None
    register, value, mask = setting.groups()
    whole = (
        0xFFFFFFFF if register.lower().endswith(".l") else 0xFF if register.lower().endswith(".b") else 0xFFFF
    )
    return _RegisterCheck((*step.argv[:-1], register), int(value, 16), int(mask, 16) if mask else whole)
