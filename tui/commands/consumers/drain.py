"""Slurm and LBNL Node Health Check (NHC): silent unless the node must get no new jobs.

Slurm: a Prolog that fails drains the node, so a warning must not fail. HealthCheckProgram has to call
scontrol itself, which refuses DRAIN without a reason (slurm.conf(5)). NHC: silent and 0 is healthy, and any
other status takes the node offline; `die` passes its text to a shell, in single quotes.
"""

from __future__ import annotations

from probes.scheduler.drain import LEADER, reason_for
from tui.commands.consumers.actions import rows_of
from tui.commands.consumers.checked_node import Answer, CheckedNode, safe

_HEALTHY, _UNHEALTHY = 0, 1
_MOST_REASON = 120


def nhc(node: CheckedNode) -> Answer:
    """Return the text for NHC's `die`, without its leader, which NHC adds."""
    reason = _reason(node)
    return (
        Answer(safe(f"{node.source}{reason}", _MOST_REASON), _UNHEALTHY) if reason else Answer("", _HEALTHY)
    )


def slurm(node: CheckedNode) -> Answer:
    """Return the reason for `scontrol update state=DRAIN`, as gdrtop health-check has it."""
    reason = _reason(node)
    if not reason:
        return Answer("", _HEALTHY)
    return Answer(safe(f"{LEADER} {node.source}{reason}", _MOST_REASON), _UNHEALTHY)


def _reason(node: CheckedNode) -> str:
    """Return "port-down mlx5_3 +2"; "" if the node may get jobs."""
    rows = [row for row in rows_of(node.judgment, node.actions) if row.action.keeps_jobs_away]
    findings = tuple(row.finding for row in rows if row.finding is not None)
    if findings:
        return reason_for(findings).removeprefix(LEADER).strip()
    verdict = node.judgment.verdict
    return f"{verdict.state.value}: {verdict.reason}" if rows else ""
