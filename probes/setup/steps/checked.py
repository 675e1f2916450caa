"""Steps whose state is that of checks: done when every check of the step is ok."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from probes.base.evidence import Severity
from probes.base.plan import Plan, Step, sentences
from probes.base.text import plural
from probes.facts.gpudirect import GdrPath
from probes.plans.common import is_reboot
from probes.queries.finding import Finding, Status
from probes.setup.step import SetupFacts, SetupStep, StepDefinition, StepState

# Findings about nvidia_peermem that do not matter on the path by DMA-BUF.
_ONLY_PEERMEM = (
    *("peermem-built-", "peermem-symbol-", "peermem-unknown-", "peermem-not-on-disk", "peermem-not-loaded"),
    *("peermem-not-persistent", "peermem-lost-"),
)


@dataclass(frozen=True, kw_only=True)
class CheckedStep(StepDefinition):
    """A step and its checks; a check that ends with * stands for all ids that begin so."""

    done: str  # the reason of a step that is done: "all ports are active"
    checks: tuple[str, ...]
    may_be_unknown: tuple[str, ...] = ()  # further checks, which many nodes have no answer for
    only: GdrPath | None = None  # the path that needs it; None: both
    notes_count: bool = False  # findings of severity note count as well
    complete: Callable[[SetupFacts, SetupStep], SetupStep] | None = None  # adds what no check knows

    def covers(self, id_: str) -> bool:
        """Return whether a finding belongs to this step."""
        names = (*self.checks, *self.may_be_unknown)
        return any(id_.startswith(name[:-1]) if name.endswith("*") else id_ == name for name in names)

    def findings_of(self, facts: SetupFacts) -> list[Finding]:
        """Return the findings that give this step its state."""
        return [finding for finding in facts.findings.values() if self.covers(finding.id)]

    def build(self, facts: SetupFacts) -> SetupStep:
        """Return the step in the state that its checks give it."""
        step = self._checked(facts)
        return step if self.complete is None else self.complete(facts, step)

    def _checked(self, facts: SetupFacts) -> SetupStep:
        path = facts.path
        if self.only is not None and path is not None and self.only is not path:
            return self.step(StepState.SKIPPED, f"not needed for {path.value}")
        own = self.findings_of(facts)
        if path is GdrPath.DMABUF:
            own = [finding for finding in own if not finding.id.startswith(_ONLY_PEERMEM)]
        found = [finding for finding in own if finding.is_present]
        counted = [finding for finding in found if self.notes_count or finding.severity is not Severity.NOTE]
        causes = [facts.findings.get(finding.part_of) for finding in counted if finding.fix is None]
        unclear = [
            finding
            for finding in own
            if finding.status is Status.UNKNOWN and finding.id not in self.may_be_unknown
        ]
        # Notes alone: the step is done, but its usual sentence would hide them.
        behind = counted or unclear or found
        ids = tuple(finding.id for finding in behind)
        evidence = tuple(part for finding in behind for part in finding.evidence)
        if counted and len(causes) == len(counted) and (cause := causes[0]) and not self.covers(cause.id):
            return self.step(StepState.BLOCKED, f"ends with: {cause.title}", findings=ids)
        if counted:
            plan = merged_plan(self.title, counted)
            asks = any(name.startswith("secure-boot") for name in ids)
            state, reason = StepState.TO_DO, _reason(counted)
            return self.step(state, reason, evidence, plan, needs_console=asks, findings=ids)
        if unclear:
            more = f", and {len(unclear) - 1} more" if len(unclear) > 1 else ""
            return self.step(StepState.UNKNOWN, f"{unclear[0].cause}{more}", findings=ids)
        reason = f"nothing to do; note: {_reason(found)}" if found else self.done
        return self.step(StepState.DONE, reason, evidence, findings=ids)


def _reason(found: list[Finding]) -> str:
    first = found[0].title
    return first if len(found) == 1 else f"{first} (and {plural(len(found) - 1, 'more problem')})"


def merged_plan(title: str, found: Iterable[Finding]) -> Plan | None:
    """Return the fixes of several findings as one plan, each command once; None if there is no fix.

    Fixes without a manual step come first, because gdrtop runs a plan up to its first manual step.
    """
    plans = [finding.fix for finding in found if finding.fix is not None]
    plans.sort(key=lambda plan: any(step.is_instruction for step in plan.steps))
    if len(plans) < 2:
        return plans[0] if plans else None
    steps: list[Step] = []
    for plan in plans:
        for step in plan.steps:
            if not any(does_the_same(step, other) for other in steps):
                steps.append(step)
    return Plan(
        title,
        tuple(sorted(steps, key=is_reboot)),
        needs_reboot=any(plan.needs_reboot for plan in plans),
        disturbs="; ".join(dict.fromkeys(plan.disturbs for plan in plans if plan.disturbs)),
        note=sentences(*dict.fromkeys(plan.note.removesuffix(".") for plan in plans)),
    )


def does_the_same(step: Step, other: Step) -> bool:
    """Return whether two steps run the same command, write the same file or ask for the same."""
    if step.argv or step.file is not None:
        return step.argv == other.argv and step.file == other.file
    return step.why == other.why
