"""What the node's own checks find in a text, or would find on the node that it shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probes.base.evidence import Severity
from probes.base.plan import Plan
from probes.checks.judgment import judge
from probes.checks.registry import CHECKS
from probes.messages.message import Weight
from probes.nccl.log.facts import Place
from probes.queries.finding import Finding
from probes.read.pasted_host import PLACEHOLDER, PastedHost
from probes.read.reading import Statement
from probes.snapshot.examination import examine

_WEIGHTS = {severity.value: Weight(severity.value) for severity in Severity}
_CHECKS = {check.id: check for check in CHECKS}


def judged(answers: Mapping[tuple[str, ...], Any], checks: frozenset[str]) -> list[Statement]:
    """Return what these checks find in what the text says of the node."""
    if not checks:
        return []
    examination = examine(PastedHost(answers))
    return [_of_finding(finding) for finding in judge(examination, only=checks).found]


def _of_finding(finding: Finding) -> Statement:
    evidence = finding.evidence[0] if finding.evidence else None
    return Statement(
        finding.id,
        "node",
        _WEIGHTS[finding.severity.value],
        finding.title,
        finding.cause,
        "" if finding.fix is None else fix_text(finding.fix),
        text="" if evidence is None else f"{evidence.source}: {evidence.value}",
        source=finding.reference,
    )


def as_check(
    name: str, cause: str, place: Place, *, fix: Plan | None = None, weight: Weight | None = None
) -> Statement:
    """Return what this check says of a node, where a table shows the fault and not the facts behind it."""
    check = _CHECKS[name]
    weight = weight or _WEIGHTS[check.severity.value]
    cause = f"{cause} {check.impact}".strip()
    fix_of_it = "" if fix is None else fix_text(fix)
    return Statement(name, "node", weight, check.title, cause, fix_of_it, place=place, source=check.reference)


def fix_text(plan: Plan) -> str:
    """Return what to do; a command that names what only stands for a device is said in words."""
    steps = (
        step.why if step.is_instruction or PLACEHOLDER in step.command else step.command
        for step in plan.steps
    )
    return f"{plan.title}: {'; '.join(step.rstrip('.') for step in steps)}."
