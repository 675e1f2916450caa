"""The last steps: the reboot that proves the setup, and the report that hands the node over."""

from __future__ import annotations

from probes.base.plan import Plan, Step, instruction
from probes.base.unknown import Maybe, Unknown
from probes.plans.common import REBOOT_ENDS_JOBS
from probes.setup.step import SetupRecord, SetupStep, StepState
from probes.snapshot.verdict import State, Verdict

_USABLE = (State.ACTIVE, State.READY, State.DEGRADED)
_REBOOT = ("reboot", "Reboot and check again")
_REPORT = ("report", "Write the report")
_REBOOT_WHY = "Only a reboot proves that the setup lasts."
_REPORT_WHY = "It hands the node over: verdict, bandwidth, changes and how to undo them."
_PLAN = Plan(
    _REBOOT[1],
    (
        instruction("See what the reboot brings: gdrtop check --after-reboot", needs_root=False),
        Step("Drain the node, then reboot it", ("systemctl", "reboot")),
    ),
    needs_reboot=True,
    disturbs=REBOOT_ENDS_JOBS,
    note="Then open setup again: it continues from here.",
)


def reboot_step(verdict: Verdict, record: SetupRecord, boot_id: Maybe[str]) -> SetupStep:
    """Return the step: done in a boot in which gdrtop never saw an open step, after an earlier boot.

    A boot in which something was loaded or set by hand proves nothing, even if the path is usable now.
    """
    if isinstance(boot_id, Unknown):
        return _reboot(StepState.UNKNOWN, f"the boot is unknown: {boot_id}")
    if all(boot == boot_id for boot in record.boots):
        return _reboot(StepState.TO_DO, "not rebooted since setup began", _PLAN)
    if record.boots.get(boot_id):
        return _reboot(StepState.TO_DO, "not rebooted since the last step was completed", _PLAN)
    if verdict.state in _USABLE:
        return _reboot(StepState.DONE, "the path is usable after a reboot")
    reason = f"after the reboot: {verdict.state.value}, {verdict.reason}"
    if verdict.state is State.UNKNOWN:
        return _reboot(StepState.UNKNOWN, reason)
    return _reboot(StepState.TO_DO, reason, _PLAN)


def _reboot(state: StepState, reason: str, plan: Plan | None = None) -> SetupStep:
    return SetupStep(*_REBOOT, state, reason, _REBOOT_WHY, plan=plan)


def report_step(record: SetupRecord) -> SetupStep:
    """Return the step: done if a report of this node was written."""
    state = StepState.DONE if record.reported else StepState.TO_DO
    reason = f"written to {record.reported}" if record.reported else "not written yet"
    return SetupStep(*_REPORT, state, reason, _REPORT_WHY, command="gdrtop report FILE")
