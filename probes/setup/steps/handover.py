"""The last steps: the reboot that proves the setup, and the report that hands the node over."""

from __future__ import annotations

from probes.base.plan import Plan, instruction
from probes.base.unknown import Unknown
from probes.checks.judgment import conclude
from probes.plans.common import REBOOT_ENDS_JOBS
from probes.plans.common import reboot_step as reboot_command
from probes.setup.step import SetupStep, StepState
from probes.setup.steps.definition import SetupFacts, StepDefinition
from probes.snapshot.verdict import State

_CONTINUES = "Then open setup again: it continues from here."
# Only showing the steps writes nothing.
_REMEMBER = "First press Enter here, or run gdrtop setup reboot --run: gdrtop then knows this boot."


def reboot_step(definition: StepDefinition, facts: SetupFacts) -> SetupStep:
    """Return the step: done in a boot in which gdrtop never saw an open step, after an earlier boot.

    A boot in which something was loaded or set by hand proves nothing, even if the path is usable now.
    """
    boot_id, boots = facts.boot_id, facts.record.boots
    if isinstance(boot_id, Unknown):
        return definition.step(StepState.UNKNOWN, f"the boot ID is unknown: {boot_id}")
    if all(boot == boot_id for boot in boots):
        reason = "not rebooted since setup began"
    elif boots.get(boot_id):
        reason = "not rebooted since the last step was completed"
    else:
        verdict = conclude(facts.examination.usability, tuple(facts.findings.values()))
        if verdict.state.is_usable:
            return definition.step(StepState.DONE, "the path is usable after a reboot")
        reason = f"after the reboot: {verdict.state.value}, {verdict.reason}"
        if verdict.state is State.UNKNOWN:
            return definition.step(StepState.UNKNOWN, reason)
    plan = Plan(
        definition.title,
        (
            instruction("See what the reboot will change: gdrtop forecast", needs_root=False),
            reboot_command("Drain the node, then reboot it"),
        ),
        needs_reboot=True,
        disturbs=REBOOT_ENDS_JOBS,
        note=_CONTINUES if boots else f"{_REMEMBER} {_CONTINUES}",
    )
    return definition.step(StepState.TO_DO, reason, plan=plan)


def report_step(definition: StepDefinition, facts: SetupFacts) -> SetupStep:
    """Return the step: done if a report of this node was written."""
    file = facts.record.reported
    state = StepState.DONE if file else StepState.TO_DO
    reason = f"written to {file}" if file else "not written yet"
    return definition.step(state, reason, command="gdrtop report FILE")
