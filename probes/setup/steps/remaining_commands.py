"""The commands that are left of a guide, as plans for one script."""

from __future__ import annotations

from dataclasses import replace

from probes.base.plan import Plan, Step
from probes.plans.common import is_reboot
from probes.plans.packages import PACKAGE_PROGRAMS
from probes.setup.step import OPEN_STATES, StepState
from probes.setup.steps.checked import does_the_same
from probes.setup.steps.guide import Guide
from probes.setup.steps.step_list import definition_of

_ONCE = {"modprobe", *PACKAGE_PROGRAMS}
_REFRESHES = {"update", "clean", "refresh"}  # each of them is about the repository that was added before


def remaining_plans(guide: Guide) -> tuple[Plan, ...]:
    """Return the commands that are left, a plan for each step in order; a reboot comes last, and once."""
    plans: list[Plan] = []
    written: list[Step] = []
    before: list[Step] = []  # what to look at before the reboot
    after: list[Step] = []
    reboot: Step | None = None
    for step in guide.steps:
        if step.state not in OPEN_STATES or step.plan is None or not definition_of(step.id).is_scripted:
            continue
        if any(step.plan == other.plan for other in guide.steps[: guide.steps.index(step)]):
            continue  # both steps end with it
        # A manual step that comes after another one may then be done, or be another.
        if step.state is StepState.BLOCKED and all(command.is_instruction for command in step.plan.steps):
            continue
        reason = f": {step.reason}" if step.state is StepState.TO_DO else ""
        reboot = next(filter(is_reboot, step.plan.steps), reboot)
        fresh = [part for part in step.plan.steps if not any(_is_repeated(part, other) for other in written)]
        left, last = _without_end(_without_refreshes(fresh))
        written += fresh
        for part in last:
            (before if any(map(is_reboot, fresh[fresh.index(part) :])) else after).append(part)
        if left:
            plans.append(replace(step.plan, title=f"{step.title}{reason}", steps=tuple(left)))
    end = (*before, *(() if reboot is None else (reboot,)), *after)
    if end:
        plans.append(Plan("Reboot" if reboot else "Check", end, needs_reboot=reboot is not None))
    return tuple(plans)


def _is_repeated(step: Step, other: Step) -> bool:
    """Return whether a step of another plan did this already: an installation, a module, a manual step."""
    once = step.is_instruction or bool(_ONCE.intersection(step.argv[:1]) and not _REFRESHES & {*step.argv})
    return once and does_the_same(step, other)


def _without_refreshes(steps: list[Step]) -> list[Step]:
    """Leave out the steps that read package lists again, if nothing of the plan is left to install."""
    installs = [step for step in steps if _ONCE.intersection(step.argv[:1]) and step.argv[0] != "modprobe"]
    if all(_REFRESHES.intersection(step.argv) for step in installs):
        return [step for step in steps if step not in installs]
    return steps


def _without_end(steps: list[Step]) -> tuple[list[Step], list[Step]]:
    """Return the steps up to the last one that changes something, and what to look at in the end."""
    left = [step for step in steps if not is_reboot(step)]
    last: list[Step] = []
    while left and left[-1].is_instruction and not left[-1].needs_root:
        last.insert(0, left.pop())
    return left, last
