"""Whether a new job may start on a node: the one answer, for Slurm, checks for others and --severity-map.

Each finding asks to isolate, reset or watch the node, or for nothing. The words follow DCGM's error
severities (MONITOR, ISOLATE, RESET; docs.nvidia.com/datacenter/dcgm, Diagnostic Errors). The judgment must be
one `without_jobs` (probes/queries/jobs.py): what a running job has set itself keeps no other one away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum

from probes.base.evidence import Severity
from probes.base.frozen import frozen
from probes.checks.gpu.devices import GSP_TIMEOUT, LOST_GPU
from probes.checks.judgment import Judgment
from probes.queries.finding import Finding, Status, concerns
from probes.snapshot.verdict import State
from probes.topology.paths import Topology


class Action(Enum):
    """What a node needs, the most drastic first."""

    ISOLATE = "isolate"  # give it no new jobs until someone has repaired it
    RESET = "reset"  # the same until its GPUs are reset or it is rebooted
    WATCH = "watch"  # it may run jobs, and someone should know
    NONE = "none"

    @property
    def keeps_jobs_away(self) -> bool:
        """Whether the node must not get new jobs."""
        return self in (Action.ISOLATE, Action.RESET)


DEFAULTS = {
    Severity.CRITICAL.value: Action.ISOLATE,
    Severity.WARNING.value: Action.WATCH,
    Severity.NOTE.value: Action.NONE,
    "unknown": Action.WATCH,
    "not-applicable": Action.NONE,
}
# Their fix is a reset or a reboot, as NVIDIA's Xid catalog has it, where they take GPUs away.
_RESET = (LOST_GPU, GSP_TIMEOUT, "gpu-recovery-action")
_ORDER = tuple(Action)


@frozen
class Row:
    """One reason for an action: a finding, or the verdict where no finding explains it."""

    action: Action
    id: str  # of the check, or "verdict"
    finding: Finding | None = None


def rows_of(judgment: Judgment, chosen: Mapping[str, Action]) -> tuple[Row, ...]:
    """Return the action that each finding asks for, the most drastic first; findings of one cause once.

    `chosen`: the map of the user, which precedes the defaults; in it a check's id precedes its severity.
    """
    if judgment.verdict.state is State.NOT_APPLICABLE:
        return (_verdict_row("not-applicable", chosen),)
    found = [finding for finding in judgment.found if not finding.part_of]
    rows = [Row(_action_of(finding, chosen), finding.id, finding) for finding in found]
    if cause := _unexplained(judgment):
        rows.append(_verdict_row(cause, chosen))
    return tuple(sorted(rows, key=lambda row: _ORDER.index(row.action)))


def rows_against_jobs(judgment: Judgment, chosen: Mapping[str, Action]) -> tuple[Row, ...]:
    """Return why the node must get no new jobs; () if it may."""
    return tuple(row for row in rows_of(judgment, chosen) if row.action.keeps_jobs_away)


def rows_for(rows: Iterable[Row], topology: Topology, ends: Collection[str]) -> tuple[Row, ...]:
    """Return what concerns a job with these GPUs and NICs: what is about them, or about no single device."""
    return tuple(row for row in rows if row.finding is None or concerns(row.finding, topology, ends))


def nics_near(topology: Topology, gpus: Iterable[str]) -> tuple[str, ...]:
    """Return the nearest NIC of each GPU, with which a job would use it; of equally near NICs, all."""
    near: list[str] = []
    for gpu in gpus:
        best = topology.best_nic.get(gpu)
        near += [best] if best else topology.best_nics.get(gpu, ())
    return tuple(dict.fromkeys(near))


def findings_in(rows: Iterable[Row]) -> tuple[Finding, ...]:
    """Return the findings of these rows."""
    return tuple(row.finding for row in rows if row.finding is not None)


def strongest(rows: tuple[Row, ...]) -> Action:
    """Return the action for the node: the most drastic one."""
    return rows[0].action if rows else Action.NONE


def _action_of(finding: Finding, chosen: Mapping[str, Action]) -> Action:
    severity = finding.severity.value
    default = Action.RESET if finding.id in _RESET and finding.takes else DEFAULTS[severity]
    return chosen.get(finding.id, chosen.get(severity, default))


def _verdict_row(name: str, chosen: Mapping[str, Action]) -> Row:
    return Row(chosen.get(name, DEFAULTS[name]), "verdict")


def _unexplained(judgment: Judgment) -> str:
    """Return how severe a verdict is that no finding explains; "" if one does, or the node works."""
    severities = {finding.severity for finding in judgment.listed if finding.status is Status.FOUND}
    state = judgment.verdict.state
    if state is State.UNKNOWN:
        return "unknown"
    if state is State.BROKEN and Severity.CRITICAL not in severities:
        return Severity.CRITICAL.value
    return Severity.WARNING.value if state is State.DEGRADED and not severities else ""
