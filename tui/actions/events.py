"""The events of a run, how it ended, and its events as lines for the console pane and the command line."""

from __future__ import annotations

from enum import Enum
from typing import Union

from probes.base.frozen import frozen
from probes.base.plan import Plan, Step
from probes.base.text import plural
from probes.base.unknown import Maybe, Unknown
from tui.terminal.program_output import toned
from widgets.base.lines import Line, Run, Tone, line, paragraphs, wrapped
from widgets.doctor.plan import draw_group, step_groups

# The events of a run, and how its steps and the whole run ended.


class RunOutcome(Enum):
    """How a step or a run ended; the values are in the audit log."""

    DONE = "done"
    FAILED = "failed"
    STILL_RUNNING = "still running"  # gdrtop no longer waits for it
    STOPPED = "stopped"  # by the user, or because the terminal closed
    LEFT = "steps left"  # the others are done; gdrtop does not run these
    REFUSED = "refused"  # nothing was run
    UNKNOWN = "unknown"  # gdrtop died during the run, so the log has no end of it

    @property
    def is_success(self) -> bool:
        """Return whether all that gdrtop runs is done; manual steps may be left."""
        return self in (RunOutcome.DONE, RunOutcome.LEFT)


@frozen
class RunBegan:
    """A run has begun."""

    plan: Plan
    as_root: str  # "as root", "by sudo", "on the simulated node"


@frozen
class StepBegan:
    """Step `number`, from 1, has begun."""

    number: int
    step: Step


@frozen
class Printed:
    """A line that the running step printed, without control sequences other than colors (SGR)."""

    text: str


@frozen
class StepEnded:
    """A step has ended; the explanation is "" if its output says enough."""

    number: int
    outcome: RunOutcome
    exit_status: int | None
    seconds: float
    explanation: str = ""
    kernel_lines: Maybe[tuple[str, ...]] = ()  # logged during the step, if it failed


@frozen
class RunEnded:
    """The run has ended; `why` is a sentence for all outcomes but DONE."""

    outcome: RunOutcome
    why: str = ""
    left: tuple[Step, ...] = ()  # not run

    @property
    def summary(self) -> str:
        """Return how the run ended: "failed", "done; 2 manual steps left"."""
        left = f"done; {plural(len(self.left), 'manual step')} left"
        return left if self.outcome is RunOutcome.LEFT else str(self.outcome.value)


RunEvent = Union[RunBegan, StepBegan, Printed, StepEnded, RunEnded]  # noqa: UP007 - for Python 3.10


_MARKS = {
    RunOutcome.DONE: Run("✓", Tone.GOOD),
    RunOutcome.FAILED: Run("✗", Tone.BAD),
    RunOutcome.STILL_RUNNING: Run("?", Tone.BAD),
    RunOutcome.STOPPED: Run("■", Tone.WARNING),
    RunOutcome.LEFT: Run("✓", Tone.WARNING),
    RunOutcome.REFUSED: Run("✗", Tone.WARNING),
    RunOutcome.UNKNOWN: Run("?", Tone.WARNING),
}


def mark_of(outcome: RunOutcome) -> Run:
    """Return `✓` done, `✗` failed or refused, `■` stopped, `?` unknown."""
    return _MARKS[outcome]


def lines_of(event: RunEvent, width: int) -> list[Line]:
    """Return the lines of one event, in order."""
    if isinstance(event, RunBegan):
        return [line(Run(event.plan.title, Tone.TITLE), Run(f"  {event.as_root}", Tone.DIM))]
    if isinstance(event, StepBegan):
        why = wrapped(f"# {event.step.why}", width, Tone.DIM)
        return [(), *why, line(Run(f"{event.number} ", Tone.DIM), Run(event.step.command, Tone.TITLE))]
    if isinstance(event, Printed):
        return [(Run("  "), *toned(event.text))]
    if isinstance(event, StepEnded):
        return _step_ended(event, width)
    return _run_ended(event, width)


def step_result(
    outcome: RunOutcome, exit_status: int | None, seconds: float | None, explanation: str, width: int
) -> list[Line]:
    """Return how a step ended, and why."""
    result = f" {outcome.value}{f', exit status {exit_status}' if exit_status else ''}"
    took = "" if seconds is None else f"  {seconds:.1f} s"
    first = line("  ", mark_of(outcome), result, Run(took, Tone.DIM))
    return [first, *paragraphs((explanation,), width, Tone.WARNING, "    ")]


def _step_ended(event: StepEnded, width: int) -> list[Line]:
    lines = step_result(event.outcome, event.exit_status, event.seconds, event.explanation, width)
    if isinstance(event.kernel_lines, Unknown):
        if event.outcome is RunOutcome.FAILED:
            lines.extend(wrapped(f"kernel log: {event.kernel_lines}", width, Tone.DIM, "    "))
    elif event.kernel_lines:
        lines.extend(wrapped("kernel log during this step:", width, Tone.DIM, "    "))
        for text in event.kernel_lines:
            lines.extend(wrapped(text, width, Tone.PLAIN, "    │ "))
    return lines


def _run_ended(event: RunEnded, width: int) -> list[Line]:
    lines: list[Line] = [(), line(mark_of(event.outcome), Run(f" {event.summary}", Tone.TITLE))]
    # Why a step failed is shown right above.
    if event.why and not event.why.startswith("step "):
        lines.extend(wrapped(event.why, width, Tone.PLAIN, "  "))
    if event.left:
        lines += [(), (Run("not run:", Tone.TITLE),)]
    for group in step_groups(event.left):
        lines.extend(draw_group(group, width))
    return lines
