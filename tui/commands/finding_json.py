"""A finding as JSON, for every document that has findings."""

from __future__ import annotations

from typing import Any

from probes.base.plan import Plan, Step
from probes.queries.finding import Finding
from tui.runtime.json_values import plain_value, time_json
from widgets.doctor.findings import title_of


def finding_json(finding: Finding) -> dict[str, Any]:
    """Return one finding."""
    return {
        "id": finding.id,
        "area": finding.area,
        "severity": finding.severity.value,
        "status": finding.status.value,
        "title": finding.title,
        "ok": finding.ok,
        "impact": finding.impact,
        "data_path": finding.data_path,
        "part_of": finding.part_of or None,
        "evidence": [plain_value(evidence) for evidence in finding.evidence],
        "cause": finding.cause,
        "devices": list(finding.devices),
        "takes": list(finding.takes),
        "ranks": list(finding.ranks),
        "jobs": list(finding.jobs),
        "since": time_json(finding.since),
        "fix": [] if finding.fix is None else _fix_json(finding.fix),
        "reference": finding.reference,
    }


def check_row_json(finding: Finding, in_full: bool) -> dict[str, Any]:
    """Return a check that ran; its title says the outcome, as on screen."""
    outcome = {
        "id": finding.id,
        "status": finding.status.value,
        "severity": finding.severity.value,
        "title": title_of(finding),
        "cause": finding.cause,
    }
    return {**finding_json(finding), **outcome} if in_full else outcome


def step_json(step: Step) -> dict[str, Any]:
    """Return what a step runs or writes, without what only drawings and setup read."""
    names = ("why", "argv", "needs_root", "undo", "file")
    return {name: plain_value(getattr(step, name)) for name in names}


def _fix_json(plan: Plan) -> list[dict[str, Any]]:
    """Return the steps; facts about the whole plan are repeated in each."""
    return [
        {
            **step_json(step),
            "group": step.group,
            "reversible": plan.reversible,
            "needs_reboot": plan.needs_reboot,
            "disturbs": plan.disturbs,
        }
        for step in plan.steps
    ]
