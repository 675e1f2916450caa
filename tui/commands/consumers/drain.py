"""Slurm and LBNL Node Health Check (NHC): silent unless the node must get no new jobs.

Slurm: a Prolog that fails drains the node, so a warning must not fail. HealthCheckProgram has to call
scontrol itself, which refuses DRAIN without a reason (slurm.conf(5)). NHC: silent and 0 is healthy, and any
other status takes the node offline; `die` passes its text to a shell, in single quotes.
"""

from __future__ import annotations

from collections.abc import Mapping

from probes.checks.judgment import Judgment
from probes.scheduler.drain import LEADER, reason_for
from tui.commands.consumers.actions import Action, findings_against_jobs, rows_against_jobs
from tui.commands.consumers.checked_node import Answer, CheckedNode, safe

_HEALTHY, _UNHEALTHY = 0, 1
_MOST_REASON = 120


def nhc(node: CheckedNode) -> Answer:
    """Return the text for NHC's `die`, without its leader, which NHC adds."""
    reason = _reason(node.judgment, node.actions)
    return (
        Answer(safe(f"{node.source}{reason}", _MOST_REASON), _UNHEALTHY) if reason else Answer("", _HEALTHY)
    )


def slurm(node: CheckedNode) -> Answer:
    """Return the reason for `scontrol update state=DRAIN`."""
    reason = slurm_reason(node.judgment, node.actions, node.source)
    return Answer(reason, _UNHEALTHY if reason else _HEALTHY)


def slurm_reason(judgment: Judgment, actions: Mapping[str, Action], source: str = "") -> str:
    """Return why Slurm must start no job on a node, as check and health-check say it; "": it may."""
    reason = _reason(judgment, actions)
    return safe(f"{LEADER} {source}{reason}", _MOST_REASON) if reason else ""


def _reason(judgment: Judgment, actions: Mapping[str, Action]) -> str:
    """Return "port-down mlx5_3 +2"; "" if the node may get jobs."""
    if findings := findings_against_jobs(judgment, actions):
        return reason_for(findings).removeprefix(LEADER).strip()
    verdict = judgment.verdict
    return f"{verdict.state.value}: {verdict.reason}" if rows_against_jobs(judgment, actions) else ""
