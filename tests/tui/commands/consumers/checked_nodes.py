"""Judgments of simulated nodes as the contracts get them, and hostile ones."""

from collections.abc import Mapping
from dataclasses import replace

from probes.base.origin import Origin, Source
from probes.checks.judgment import judge
from probes.checks.new_jobs import Action
from probes.queries.finding import Status
from tests.support.doctor import examination_of
from tui.commands.consumers.checked_node import CheckedNode

HERE = Origin(Source.LIVE, "")


def checked(name: str, actions: Mapping[str, Action] | None = None, origin: Origin = HERE) -> CheckedNode:
    """Return a simulated node as if it was this machine."""
    return CheckedNode(judge(examination_of(name)), origin, actions or {})


def with_texts(node: CheckedNode, text: str, devices: tuple[str, ...] = ()) -> CheckedNode:
    """Return the same judgment, without passed checks, with this text wherever one may be from a node."""
    findings = tuple(
        replace(finding, title=text, cause=text, impact=text, devices=devices, takes=devices, jobs=devices)
        for finding in node.judgment.findings
        if finding.status is not Status.PASSED
    )
    judgment = replace(node.judgment, verdict=replace(node.judgment.verdict, reason=text), findings=findings)
    return replace(node, judgment=judgment, origin=Origin(Source.SIMULATED, text))
