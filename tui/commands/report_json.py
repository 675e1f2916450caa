"""The JSON document of `gdrtop report`: those of the other commands, at one moment."""

from __future__ import annotations

from typing import Any

from probes.queries.usable_here import usable_here
from probes.setup.report import Report
from tui.commands.bench.json_report import result_json
from tui.commands.check import check_json
from tui.commands.live import live_json
from tui.commands.topo_json import topology_json
from tui.runtime.json_values import document, host_name, object_of, plain_value, with_time

_NO_PROCESSES = "a tree of files has no processes"


def report_json(report: Report) -> dict[str, Any]:
    """Return the document."""
    examination, at = report.examination, report.at
    node, verdict, found = examination.node, report.verdict, report.findings
    results = {"results": [result_json(measured.result) for measured in report.measured]}
    content: dict[str, Any] = {
        "redacted": report.is_redacted,
        "versions": object_of(dict(report.versions)),
        "check": check_json(node, at, verdict, found),
        "topo": topology_json(node, examination.topology, verdict, at, found, usable_here(examination)),
        "live": None if report.sample is None else live_json(node, report.sample),
        "bench": document("bench", host_name(node), node.origin, at, results),
        "meaning": list(report.conclusions),
        "changes": [with_time(plain_value(change)) for change in report.changes],
        "unread": plain_value(report.unread),
    }
    if report.sample is None:
        content["unknown"] = {"live": _NO_PROCESSES}
    return document("report", host_name(node), node.origin, at, content)
