"""Slurm and LBNL Node Health Check (NHC): silent unless the node must get no new jobs.

Slurm: a Prolog that fails drains the node, so a warning must not fail. HealthCheckProgram has to call
scontrol itself, which refuses DRAIN without a reason (slurm.conf(5)). NHC: silent and 0 is healthy, and any
other status takes the node offline; `die` passes its text to a shell, in single quotes.
"""

from __future__ import annotations

from collections.abc import Sequence

from probes.checks.new_jobs import Row, findings_in, rows_against_jobs
from probes.slurm.drain import LEADER, reason_for
from probes.snapshot.verdict import Verdict
from tui.commands.consumers.checked_node import Answer, CheckedNode, safe

_HEALTHY, _UNHEALTHY = 0, 1
_MOST_REASON = 120


def nhc(node: CheckedNode) -> Answer:
    """Return the text for NHC's `die`, without its leader, which NHC adds."""
    reason = _reason(rows_against_jobs(node.judgment, node.actions), node.judgment.verdict)
    return (
        Answer(safe(f"{node.source}{reason}", _MOST_REASON), _UNHEALTHY) if reason else Answer("", _HEALTHY)
    )


def slurm(node: CheckedNode) -> Answer:
    """Return the reason for `scontrol update state=DRAIN`."""
    rows = rows_against_jobs(node.judgment, node.actions)
    reason = slurm_reason(rows, node.judgment.verdict, node.source)
    return Answer(reason, _UNHEALTHY if reason else _HEALTHY)


def slurm_reason(rows: Sequence[Row], verdict: Verdict, source: str = "") -> str:
    """Return why Slurm must start no job, from the rows against it; "" without any."""
    reason = _reason(rows, verdict)
    return safe(f"{LEADER} {source}{reason}", _MOST_REASON) if reason else ""


def _reason(rows: Sequence[Row], verdict: Verdict) -> str:
    """Return "port-down mlx5_3 +2", or the verdict where no finding explains it."""
    if findings := findings_in(rows):
        return reason_for(findings).removeprefix(LEADER).strip()
    return f"{verdict.state.value}: {verdict.reason}" if rows else ""
