"""SARIF 2.1.0 (OASIS) for viewers of analysis results: a result for each finding.

A node has no source files, so its devices are logical locations. A silenced finding is a suppressed result. A
check that could not run is a notification of the invocation, because it has no result.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

from probes.base.plan import sentences
from probes.base.text import printable
from probes.checks.judgment import exit_status
from probes.queries.finding import Finding, Severity, Status
from tui.commands.consumers.checked_node import Answer, CheckedNode
from tui.files.version import version
from tui.runtime.json_values import verdict_json

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Severity.CRITICAL: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


def sarif(node: CheckedNode) -> Answer:
    """Return the log with one run, in ASCII; the status is that of check."""
    judgment = node.judgment
    status = exit_status(judgment.verdict)
    listed = [finding for finding in judgment.findings if finding.status is not Status.PASSED]
    places = {finding.id: place for place, finding in enumerate(listed)}
    unread = [finding for finding in listed if finding.status is Status.UNKNOWN]
    at = datetime.fromtimestamp(node.at, timezone.utc)
    invocation: dict[str, Any] = {
        "executionSuccessful": True,
        "exitCode": status,
        "endTimeUtc": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "toolExecutionNotifications": [_notification(finding, places) for finding in unread],
    }
    if node.host_name:
        invocation["machine"] = printable(node.host_name)
    driver = {
        "name": "gdrtop",
        "version": version(),
        "rules": [_rule(finding) for finding in listed],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "results": [_result(finding, node, places) for finding in listed if finding.is_present],
        "properties": {
            "verdict": verdict_json(judgment.verdict),
            "source": node.origin.source.value,
            "label": printable(node.origin.label),
        },
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return Answer(json.dumps(log, indent=1, ensure_ascii=True), status)


def _message(text: str) -> dict[str, str]:
    return {"text": printable(text) or "-"}


def _rule(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "shortDescription": _message(finding.problem),
        "help": _message(finding.reference),
    }


def _notification(finding: Finding, places: dict[str, int]) -> dict[str, Any]:
    return {
        "level": "note",
        "message": _message(finding.cause),
        "associatedRule": {"id": finding.id, "index": places[finding.id]},
    }


def _result(finding: Finding, node: CheckedNode, places: dict[str, int]) -> dict[str, Any]:
    host_name = printable(node.host_name) or "node"
    ends = [printable(device) for device in finding.devices]
    names = [f"{host_name}/{end}" for end in ends] or [host_name]
    result: dict[str, Any] = {
        "ruleId": finding.id,
        "ruleIndex": places[finding.id],
        "level": _LEVELS[finding.severity],
        "message": _message(sentences(finding.title, finding.cause.removesuffix("."))),
        "locations": [
            {"logicalLocations": [{"fullyQualifiedName": name, "kind": "resource"}]} for name in names
        ],
        "partialFingerprints": {"gdrtopFinding/v1": f"{host_name}/{finding.id}"},
    }
    if finding.part_of:
        result["properties"] = {"part_of": finding.part_of}
    if finding.status is Status.SILENCED:
        reason = finding.silence.reason if finding.silence else ""
        result["suppressions"] = [{"kind": "external", "justification": printable(reason)}]
    return result
