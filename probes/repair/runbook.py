"""The repair of one node: where it stands, step by step.

As in setup, the state of a step is never saved. It is read from the scheduler, the node and the log of
actions, so that a repair goes on after a reboot, from another terminal and by another admin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from probes.acceptance.certificate import Certificate, EarlierCertificate
from probes.acceptance.profile import Answer
from probes.bandwidth.model.request import Request, Scope
from probes.base.data_files import read_toml
from probes.base.evidence import Evidence
from probes.base.frozen import frozen
from probes.base.plan import Plan, user_plan
from probes.base.text import join_limited, plural
from probes.base.unknown import Unknown
from probes.checks.judgment import Judgment
from probes.checks.new_jobs import Row
from probes.plans.common import REBOOT_ENDS_JOBS, is_reboot, reboot_step
from probes.repair.scheduler import Scheduler, jobs_on
from probes.setup.step import BuiltStep, SetupFacts, SetupStep, StepDefinition, StepState, after_earlier
from probes.setup.steps.measured import MeasuredStep
from probes.setup.steps.step_list import check_steps
from probes.slurm.slurm_node import LEADER, REPAIR_LEADER
from probes.snapshot.verdict import State

DRAIN, ACT, RETURN = "repair:drain", "repair:act", "repair:return"
"""Actions in the log."""
_NO_SCHEDULER = "neither Slurm nor Kubernetes was found on this node"
_GOES_ON = "Then run gdrtop repair again: it goes on from here."
_BY_HAND = "Repair it by hand, then run gdrtop repair again: it checks the node"


@frozen
class PastRuns:
    """What the log of actions says of this repair."""

    reason: str = ""  # "gdrtop repair: port-down mlx5_3", of its first run
    acted_at: float = 0.0  # the last change, seconds since 1970; results from before do not count
    has_drained: bool = False  # by this command
    boots: frozenset[str] = frozenset()  # in which a fix was applied


@frozen
class RepairFacts(SetupFacts):
    """What the steps are built from; `results` are those since the last change and boot."""

    scheduler: Scheduler | None
    judgment: Judgment  # as if no job ran, as for a drain
    rows: tuple[Row, ...]  # what asks for something, the most drastic first
    worst: str  # the reason that gdrtop gives for those that keep jobs away; "" without any
    past: PastRuns
    is_local: bool  # gdrtop runs on the node
    certificate: Certificate | None = None
    earlier: EarlierCertificate | None = None
    given: str = ""  # the reason that the admin gives
    anyway: str = ""  # why the node shall return although steps are open

    @property
    def is_out(self) -> bool:
        """Whether the scheduler starts no job here, as far as is known."""
        return self.scheduler is not None and self.scheduler.is_out is True

    @property
    def reason(self) -> str:
        """Why the node is repaired; "": there is nothing to repair."""
        if self.scheduler is not None and self.scheduler.reason:
            return self.scheduler.reason
        begun = self.past.reason if self.scheduler is None or self.scheduler.is_out is not False else ""
        first = begun if self.is_out else ""
        return self.given or first or self.worst or begun

    @property
    def left(self) -> tuple[Row, ...]:
        """What is still wrong: what keeps jobs away, and what the repair is about."""
        subject = self.reason.partition(": ")[2].split(" ")[:1]
        return tuple(row for row in self.rows if row.action.keeps_jobs_away or [row.id] == subject)

    @property
    def fix(self) -> Plan | None:
        """The doctor's plan for the first of it."""
        finding = next((row.finding for row in self.left if row.finding is not None), None)
        if finding is None:
            return None
        cause = self.findings.get(finding.part_of)
        return finding.fix if finding.fix is not None or cause is None else cause.fix

    @property
    def has_acted(self) -> bool:
        """Whether the fix was applied in this boot."""
        return not isinstance(self.boot_id, Unknown) and self.boot_id in self.past.boots


@frozen
class Runbook:
    """All that is shown of a repair."""

    facts: RepairFacts
    steps: tuple[SetupStep, ...]  # () if there is nothing to repair

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do, or to find out."""
        scheduler = self.facts.scheduler
        is_known = scheduler is None or not isinstance(scheduler.is_out, Unknown)
        return is_known and all(step.is_over for step in self.steps)

    @property
    def next_step(self) -> SetupStep | None:
        """The first step that can be done now, else the first that is not over.

        It is the last one if the node shall return with open steps.
        """
        left = [step for step in self.steps if not step.is_over]
        wanted = left[-1:] if self.facts.anyway else left
        ready = (step for step in wanted if step.state is StepState.TO_DO)
        return next(ready, left[0] if left else None)


def runbook_of(facts: RepairFacts) -> Runbook:
    """Return the steps; none without a reason, on a node that is in service."""
    if not facts.reason and not facts.is_out:
        return Runbook(facts, ())
    steps: dict[str, SetupStep] = {}
    for definition in STEPS:
        steps[definition.id] = after_earlier(definition, definition.build(facts), steps)
    steps["return"] = _held_back(steps["return"], facts, [*steps.values()][:-1])
    return Runbook(facts, tuple(steps.values()))


def _reason(definition: StepDefinition, facts: RepairFacts) -> SetupStep:
    evidence = tuple(Evidence(row.id, row.finding.title) for row in facts.left if row.finding is not None)
    return definition.step(StepState.DONE, facts.reason or "drained without a reason", evidence)


def _drain(definition: StepDefinition, facts: RepairFacts) -> SetupStep:
    scheduler = facts.scheduler
    if scheduler is None:
        return definition.step(StepState.SKIPPED, _NO_SCHEDULER)
    own = facts.reason.replace(LEADER, REPAIR_LEADER, 1)
    plan, is_out = scheduler.drain(own), scheduler.is_out
    if isinstance(is_out, Unknown):
        return definition.step(
            StepState.UNKNOWN, scheduler.summary, plan=None if isinstance(plan, str) else plan
        )
    if is_out and scheduler.reason.startswith(LEADER):
        reason = f"{scheduler.summary}; without this, the health check returns it"
        return definition.step(StepState.TO_DO, reason, plan=None if isinstance(plan, str) else plan)
    if is_out:
        return definition.step(StepState.DONE, scheduler.summary)
    if isinstance(plan, str):
        return definition.step(StepState.BLOCKED, plan)
    return definition.step(StepState.TO_DO, scheduler.summary, plan=plan)


def _wait(definition: StepDefinition, facts: RepairFacts) -> SetupStep:
    jobs = jobs_on(facts.examination) if facts.scheduler is None else facts.scheduler.jobs
    if isinstance(jobs, Unknown):
        return definition.step(StepState.UNKNOWN, f"the jobs are unknown: {jobs}")
    if not jobs:
        return definition.step(StepState.DONE, "no job runs")
    return definition.step(StepState.TO_DO, f"{plural(len(jobs), 'job')} left: {join_limited(jobs)}")


def _act(definition: StepDefinition, facts: RepairFacts) -> SetupStep:
    if not facts.left:
        return definition.step(StepState.DONE, "nothing is left to fix")
    first, plan = facts.left[0], facts.fix
    title = facts.judgment.verdict.reason if first.finding is None else first.finding.title
    if plan is None:
        return definition.step(StepState.TO_DO, title, plan=user_plan(definition.title, _BY_HAND))
    steps = tuple(step for step in plan.steps if not is_reboot(step))
    if plan.needs_reboot and (facts.has_acted or not steps):
        reason = "done; it takes effect with the reboot" if facts.has_acted else "the fix is a reboot"
        return definition.step(StepState.DONE, reason)
    own = replace(plan, title=f"{plan.title} ({facts.reason})", steps=steps)
    return definition.step(StepState.TO_DO, title, plan=own, findings=(first.id,))


def _reboot(definition: StepDefinition, facts: RepairFacts) -> SetupStep:
    plan = facts.fix
    if plan is None or not plan.needs_reboot:
        return definition.step(StepState.SKIPPED, "not needed")
    if all(step.is_instruction for step in plan.steps):
        return definition.step(StepState.SKIPPED, "the manual steps of the fix say when")
    command = reboot_step("Reboot the node")
    own = Plan(definition.title, (command,), needs_reboot=True, disturbs=REBOOT_ENDS_JOBS, note=_GOES_ON)
    return definition.step(StepState.TO_DO, "the fix takes effect at boot", plan=own)


def _check(definition: StepDefinition, facts: RepairFacts) -> SetupStep:
    verdict = facts.judgment.verdict
    if facts.left:
        names = join_limited(row.id for row in facts.left)
        return definition.step(StepState.TO_DO, f"still found: {names}", command="gdrtop check")
    if verdict.state is State.UNKNOWN:
        return definition.step(StepState.UNKNOWN, f"no verdict: {verdict.reason}")
    others = f"; beside it: {join_limited(row.id for row in facts.rows)}" if facts.rows else ""
    return definition.step(StepState.DONE, f"{verdict.word}{others}")


def _measure(definition: StepDefinition, facts: RepairFacts) -> SetupStep:
    if not facts.is_local:
        reason = "gdrtop measures only the node that it runs on: run gdrtop repair there"
        return definition.step(StepState.UNKNOWN, reason)
    return MeasuredStep(
        definition.id, definition.title, definition.why, request=Request(scope=Scope.SWEEP)
    ).measured(facts.examination, facts.results, facts.path)


def _compare(definition: StepDefinition, facts: RepairFacts) -> SetupStep:
    now, before = facts.certificate, facts.earlier
    if now is None or before is None:
        return definition.step(StepState.SKIPPED, "none is named (--certificate OLD.json)")
    differences = tuple(Evidence("differs", text) for text in now.changes or ())
    was_met = {name for name, answer in before.answers.items() if answer == Answer.PASS.value}
    lost = [each.id for each in now.criteria if each.id in was_met and each.answer is not Answer.PASS]
    if lost:
        reason = f"no longer passed: {join_limited(lost)}"
        return definition.step(StepState.BLOCKED, reason, differences)
    state, reason = StepState.DONE, f"as on {before.at}, {plural(len(differences), 'difference')}"
    return definition.step(state, reason, differences)


def _return(definition: StepDefinition, facts: RepairFacts) -> SetupStep:
    scheduler = facts.scheduler
    if scheduler is None:
        return definition.step(StepState.SKIPPED, _NO_SCHEDULER)
    if isinstance(scheduler.is_out, Unknown):
        return definition.step(StepState.UNKNOWN, scheduler.summary)
    if not scheduler.is_out:
        return definition.step(StepState.DONE, scheduler.summary)
    if isinstance(scheduler.resume, str):
        return definition.step(StepState.BLOCKED, f"{scheduler.resume}; who drained it returns it")
    if not scheduler.reason and not facts.past.has_drained:  # Kubernetes keeps no reason
        reason = f"gdrtop's log does not say that it was {scheduler.state} by gdrtop; who did it returns it"
        return definition.step(StepState.BLOCKED, reason)
    return definition.step(StepState.TO_DO, scheduler.summary, plan=scheduler.resume)


def _held_back(step: SetupStep, facts: RepairFacts, earlier: Sequence[SetupStep]) -> SetupStep:
    """Let a node with open steps return only with the admin's own reason, which the log keeps."""
    missing = [each.title for each in earlier if not each.is_over]
    if step.plan is None or not missing:
        return step
    if not facts.anyway:
        reason = f"waiting for: {missing[0]} (--anyway WHY returns it all the same)"
        return replace(step, state=StepState.BLOCKED, reason=reason)
    what = f"although open: {join_limited(missing)}; {facts.anyway}"
    return replace(step, reason=what, plan=replace(step.plan, title=f"{step.plan.title}, {what}"))


_FUNCTIONS: Mapping[str, Callable[[StepDefinition, RepairFacts], SetupStep]] = {
    "reason": _reason,
    "drain": _drain,
    "wait": _wait,
    "act": _act,
    "reboot": _reboot,
    "check": _check,
    "measure": _measure,
    "compare": _compare,
    "return": _return,
}
STEPS = tuple(
    BuiltStep(
        **{**row, "judges": tuple(row.get("judges", ())), "after": tuple(row.get("after", ()))},
        function=_FUNCTIONS[row["id"]],
    )
    for row in read_toml(__package__, "steps.toml")["step"]
)
check_steps(STEPS)
