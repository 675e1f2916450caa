"""A plan before it runs: what it means for the node, each command with its reason and its undo."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import groupby

from probes.base.plan import FileChange, Plan, Step
from widgets.base.lines import Line, Run, Tone, wrapped

_MOST_TEXT_LINES = 12
_FEWEST_FOLDED = 3


def draw_plan(plan: Plan, width: int) -> list[Line]:
    """What it is, what it means for the node, and its steps."""
    lines: list[Line] = [(Run("FIX", Tone.TITLE), Run(f"  {plan.title}"))]
    return [*lines, *draw_consequences(plan, width), *draw_steps(plan, width)]


def draw_consequences(plan: Plan, width: int, names_jobs: bool = False) -> list[Line]:
    """What it needs, whether it can be undone, and what it disturbs; `names_jobs`: jobs are listed below."""
    return wrapped(
        " · ".join(consequences(plan, names_jobs)), width, Tone.WARNING if plan.disturbs else Tone.DIM
    )


def draw_steps(plan: Plan, width: int) -> list[Line]:
    """The steps in order, equal ones folded, then what to know."""
    lines: list[Line] = []
    for steps in step_groups(plan.steps):
        lines.extend(draw_group(steps, width))
    if plan.note:
        lines.extend(wrapped(plan.note, width, Tone.DIM))
    return lines


def step_groups(steps: Sequence[Step]) -> list[tuple[Step, ...]]:
    """The steps in order; those that differ in their device alone together, where they are many."""
    groups: list[tuple[Step, ...]] = []
    for _, some in groupby(steps, lambda step: (step.group, step.argv[:1])):
        equal = tuple(some)
        folds = equal[0].group and len(equal) >= _FEWEST_FOLDED
        groups.extend([equal] if folds else [(step,) for step in equal])
    return groups


def draw_group(steps: Sequence[Step], width: int) -> list[Line]:
    """One step, or the first of many equal ones and how many there are."""
    if len(steps) == 1:
        return draw_step(steps[0], width)
    head = f"{len(steps)} {steps[0].group}, the first:"
    last = f"… {len(steps) - 1} more like this"
    return [
        *wrapped(head, width, Tone.PLAIN, "  "),
        *draw_step(steps[0], width),
        *wrapped(last, width, Tone.PLAIN, "  "),
    ]


def consequences(plan: Plan, names_jobs: bool = False) -> list[str]:
    """What a plan needs and does, in a few words each."""
    is_manual = all(step.is_instruction for step in plan.steps)
    words = ["manual steps only" if is_manual else "needs root" if plan.needs_root else "needs no root"]
    if plan.needs_reboot:
        words.append("needs a reboot")
    if not is_manual:
        words.append("can be undone" if plan.reversible else "cannot be undone")
    if plan.disturbs or not names_jobs:
        words.append(f"disturbs: {plan.disturbs}" if plan.disturbs else "disturbs no running job")
    return words


def draw_step(step: Step, width: int) -> list[Line]:
    """Why, the command or the file's new text, and what undoes it."""
    if step.is_instruction:
        return wrapped(f"manual: {step.why}", width, Tone.PLAIN, "  ")
    lines = wrapped(f"# {step.why}", width, Tone.DIM, "  ")
    if step.file is not None:
        return [*lines, *_file(step.file, width)]
    lines.extend(wrapped(command_of(step), width, Tone.GOOD, "  "))
    if step.undo:
        lines.extend(wrapped(f"undo: {shlex.join(step.undo)}", width, Tone.DIM, "    "))
    return lines


def command_of(step: Step) -> str:
    """A step in one line: the command as typed, or what happens to the file."""
    if step.file is None:
        return shlex.join(step.argv)
    if step.file.text is not None:
        return f"write {step.file.path}"
    return f"restore {step.file.path} from {step.file.kept}" if step.file.kept else f"remove {step.file.path}"


def _file(change: FileChange, width: int) -> list[Line]:
    lines = wrapped(command_of(Step("", file=change)), width, Tone.GOOD, "  ")
    content = change.text.splitlines() if change.text is not None else []
    for text in content[:_MOST_TEXT_LINES]:
        lines.extend(wrapped(text, width, Tone.PLAIN, "  │ "))
    if len(content) > _MOST_TEXT_LINES:
        lines.extend(wrapped(f"… and {len(content) - _MOST_TEXT_LINES} more lines", width, Tone.DIM, "  │ "))
    return [*lines, *wrapped("an earlier file is saved beside it", width, Tone.DIM, "    ")]
