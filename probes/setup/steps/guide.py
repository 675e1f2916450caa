"""Setup of one node: where it stands, which path it should use, and the steps in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probes.bandwidth.model.result import Result
from probes.base.frozen import frozen
from probes.base.plan import Plan, Step
from probes.base.unknown import Maybe
from probes.facts.gpudirect import GdrPath
from probes.facts.node import host_name
from probes.facts.system.platform import in_container
from probes.host.protocol import Host
from probes.host.values import BOOT_ID
from probes.plans.common import is_reboot
from probes.plans.packages import PACKAGE_PROGRAMS
from probes.queries.finding import Finding
from probes.setup.situation import PathChoice, Situation, choose_path, read_situation
from probes.setup.step import (
    OPEN_STATES,
    REBOOT,
    SetupFacts,
    SetupRecord,
    SetupStep,
    StepState,
    after_earlier,
)
from probes.setup.steps.checked import does_the_same
from probes.setup.steps.step_list import HARDWARE, STEPS, definition_of
from probes.snapshot.examination import Examination

_NO_PATH = "GPUDirect RDMA cannot work on this node"
_IN_CONTAINER = "this is a container; run gdrtop setup on the node itself"


@frozen
class Guide:
    """Everything that setup shows at one moment."""

    situation: Situation
    choice: PathChoice
    path: GdrPath | None  # chosen by the admin, else recommended; None: none can work here
    steps: tuple[SetupStep, ...]
    boot_id: Maybe[str]
    path_by: str = ""  # "chosen by root on 2026-11-22"; "": the recommended path

    @property
    def listed(self) -> tuple[SetupStep, ...]:
        """Return the steps to show: where GPUDirect RDMA cannot work, without those that only it needs."""
        return tuple(step for step in self.steps if step.reason != _NO_PATH)

    @property
    def skipped(self) -> tuple[str, ...]:
        """Return the ids of the steps that the admin skipped although they are not done."""
        return tuple(step.id for step in self.steps if step.is_left_out)

    @property
    def next_step(self) -> SetupStep | None:
        """Return the first step that can be done now; an optional one only if nothing else is left."""
        ready = [step for step in self.steps if step.state is StepState.TO_DO]
        return next((step for step in ready if not step.is_optional or self.is_finished), None)

    @property
    def is_finished(self) -> bool:
        """Return whether nothing is left to do, apart from what the admin skipped."""
        return not any(step.is_open for step in self.steps)

    @property
    def is_prepared(self) -> bool:
        """Return whether everything before the reboot is done, so that a reboot can prove it."""
        before = definition_of(REBOOT).after
        return all(step.state not in OPEN_STATES for step in self.steps if step.id in before)

    def step(self, id_: str) -> SetupStep | None:
        """Return a step by its id."""
        return next((step for step in self.steps if step.id == id_), None)


def read_guide(
    host: Host,
    examination: Examination,
    findings: Sequence[Finding],
    results: Sequence[Result],
    record: SetupRecord,
) -> Guide:
    """Read what setup needs besides an examination, and return the guide; may take seconds.

    `results`: all saved ones, also of other nodes.
    """
    own = [result for result in results if result.node == host_name(examination.node)]
    return build_guide(read_situation(host, examination), findings, own, record, host.read(BOOT_ID))


def build_guide(
    situation: Situation,
    findings: Sequence[Finding],
    results: Sequence[Result],
    record: SetupRecord,
    boot_id: Maybe[str],
) -> Guide:
    """Return the guide for a node; `findings` are all of the node's, `results` those of this node."""
    choice = choose_path(situation.examination)
    chosen = next((path for path in GdrPath if path.value == record.path), None)
    path = None if choice.is_impossible else chosen or choice.recommended
    by_id = {finding.id: finding for finding in findings}
    facts = SetupFacts(situation, choice, path, by_id, results, record, boot_id)
    path_by = record.path_by if chosen and path else ""
    return Guide(situation, choice, path, _steps_of(facts), boot_id, path_by)


def _steps_of(facts: SetupFacts) -> tuple[SetupStep, ...]:
    """Build the steps in order; those that the admin skipped and those that others block say so."""
    skipped = facts.record.skipped or {}
    is_in_container = in_container(facts.examination.node.platform)
    steps: dict[str, SetupStep] = {}
    for definition in STEPS:
        step = definition.build(facts)
        if facts.choice.is_staged and definition.staged:
            step = replace(step, why=definition.staged)
        elif facts.choice.is_impossible and step.id != HARDWARE:
            step = replace(step, state=StepState.SKIPPED, reason=_NO_PATH, plan=None)
        if is_in_container and step.state is StepState.TO_DO and not definition.is_possible_in_container:
            step = replace(step, state=StepState.BLOCKED, reason=_IN_CONTAINER, plan=None)
        if step.id in skipped and step.state is not StepState.DONE:
            step = replace(step, state=StepState.SKIPPED, reason=skipped[step.id], is_left_out=True)
        else:
            step = after_earlier(definition, step, steps)
        steps[step.id] = step
    return tuple(steps.values())


# The commands that are left of a guide, as plans for one script.

_ONCE = {"modprobe", *PACKAGE_PROGRAMS}
_REFRESHES = {"update", "clean", "refresh"}  # each of them is about the repository that was added before


def remaining_plans(guide: Guide) -> tuple[Plan, ...]:
    """Return the commands that are left, a plan for each step in order; a reboot comes last, and once."""
    plans: list[Plan] = []
    handled: list[Plan] = []  # of steps that are open
    written: list[Step] = []
    before: list[Step] = []  # what to look at before the reboot
    after: list[Step] = []
    reboot: Step | None = None
    for step in guide.steps:
        if step.state not in OPEN_STATES or step.plan is None or not definition_of(step.id).is_scripted:
            continue
        # A manual step that comes after another one may then be done, or be another.
        if step.state is StepState.BLOCKED and all(command.is_instruction for command in step.plan.steps):
            continue
        if step.plan in handled:
            continue  # both steps end with it
        handled.append(step.plan)
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
