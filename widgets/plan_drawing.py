"""A plan before it runs: what it means for the node, each command with its reason, and the way back."""

from __future__ import annotations

import shlex

from probes.plan import FileChange, Plan, Step
from widgets.lines import Line, Run, Tone, wrapped

_MOST_TEXT_LINES = 12


def draw_plan(plan: Plan, width: int) -> list[Line]:
    """What it is, what it means for the node, and its steps."""
    lines: list[Line] = [(Run("FIX", Tone.TITLE), Run(f"  {plan.title}"))]
    return [*lines, *draw_consequences(plan, width), *draw_steps(plan, width)]


def draw_consequences(plan: Plan, width: int, is_felt: bool = False) -> list[Line]:
    """What it needs, whether it can be taken back, and what jobs feel; `is_felt`: who does stands below."""
    told = " · ".join(consequences(plan, is_felt))
    return wrapped(told, width, Tone.WARNING if plan.disturbs else Tone.DIM)


def draw_steps(plan: Plan, width: int) -> list[Line]:
    """The steps in order, then what to know."""
    lines: list[Line] = []
    for step in plan.steps:
        lines.extend(draw_step(step, width))
    if plan.note:
        lines.extend(wrapped(plan.note, width, Tone.DIM))
    return lines


def consequences(plan: Plan, is_felt: bool = False) -> list[str]:
    """What a plan needs and does, in a few words each."""
    told = ["needs root" if plan.needs_root else "needs no root"]
    if plan.needs_reboot:
        told.append("needs a reboot")
    told.append("can be taken back" if plan.reversible else "cannot be taken back")
    if plan.disturbs or not is_felt:
        told.append(f"disturbs: {plan.disturbs}" if plan.disturbs else "disturbs no running job")
    return told


def draw_step(step: Step, width: int) -> list[Line]:
    """Why, the command or the file's new text, and what takes it back."""
    if step.is_instruction:
        return wrapped(f"by hand: {step.why}", width, Tone.PLAIN, "  ")
    lines = wrapped(f"# {step.why}", width, Tone.DIM, "  ")
    if step.file is not None:
        return [*lines, *_file(step.file, width)]
    lines.extend(wrapped(command_of(step), width, Tone.GOOD, "  "))
    if step.undo:
        lines.extend(wrapped(f"back: {shlex.join(step.undo)}", width, Tone.DIM, "    "))
    return lines


def command_of(step: Step) -> str:
    """A step in one line: the command as typed, or what happens to the file."""
    if step.file is None:
        return shlex.join(step.argv)
    if step.file.text is not None:
        return f"write {step.file.path}"
    return f"put {step.file.kept} back as {step.file.path}" if step.file.kept else f"remove {step.file.path}"


def _file(change: FileChange, width: int) -> list[Line]:
    lines = wrapped(command_of(Step("", file=change)), width, Tone.GOOD, "  ")
    told = change.text.splitlines() if change.text is not None else []
    for text in told[:_MOST_TEXT_LINES]:
        lines.extend(wrapped(text, width, Tone.PLAIN, "  │ "))
    if len(told) > _MOST_TEXT_LINES:
        lines.extend(wrapped(f"… and {len(told) - _MOST_TEXT_LINES} more lines", width, Tone.DIM, "  │ "))
    return [*lines, *wrapped("an earlier file is kept beside it", width, Tone.DIM, "    ")]
