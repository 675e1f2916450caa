"""Draw the events of a run as lines, for the console pane and the command line."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.plan import Step
from probes.base.unknown import Unknown
from tui.actions.events import Printed, RunBegan, RunEnded, RunEvent, RunOutcome, StepBegan, StepEnded
from tui.terminal.program_output import toned
from widgets.base.lines import Line, Run, Tone, line, wrapped
from widgets.doctor.plan import draw_group, step_groups

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


def _step_ended(event: StepEnded, width: int) -> list[Line]:
    result = event.outcome.value
    if event.exit_status:
        result += f", exit status {event.exit_status}"
    lines: list[Line] = [
        line("  ", mark_of(event.outcome), f" {result}", Run(f"  {event.seconds:.1f} s", Tone.DIM))
    ]
    if event.explanation:
        lines.extend(wrapped(event.explanation, width, Tone.WARNING, "    "))
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
    return [*lines, *_left(event.left, width)]


def _left(steps: Sequence[Step], width: int) -> list[Line]:
    if not steps:
        return []
    lines: list[Line] = [(), (Run("not run:", Tone.TITLE),)]
    for group in step_groups(steps):
        lines.extend(draw_group(group, width))
    return lines
