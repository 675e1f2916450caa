"""Nagios, Icinga and whatever runs monitoring plugins: status word, text, performance data.

Monitoring Plugins Development Guidelines, "Plugin Output" and "Performance data":
'label'=value[UOM];[warn];[crit];[min];[max], separated by spaces, after the first "|". The first line is what
is alerted; the lines below are the long text.
"""

from __future__ import annotations

from collections import Counter

from probes.checks.judgment import exit_status
from probes.queries.finding import Status
from tui.commands.consumers.checked_node import (
    Answer,
    CheckedNode,
    counts_of,
    first_problem,
    safe,
    served,
    with_devices,
)

_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_MOST_TEXT = 400  # old NRPE passes on 1 KB, performance data included
_MOST_ROW = 200
_MOST_LONG_TEXT = 3000  # Nagios reads 4 KB or more


def nagios(node: CheckedNode) -> Answer:
    """Return one line with performance data, then a line for each finding; the status is that of check."""
    verdict = node.judgment.verdict
    status = exit_status(verdict)
    parts = (verdict.word, served(verdict), counts_of(verdict))
    problem = first_problem(node.judgment)
    summary = ", ".join(filter(None, parts)).replace(", via", " via", 1)
    text = f"{node.source}{summary}{f': {problem}' if problem else ''}"
    lines = [f"GDRTOP {_WORDS[status]} - {safe(text, _MOST_TEXT)} | {_performance_data(node)}"]
    room = _MOST_LONG_TEXT
    listed = node.judgment.listed
    for place, finding in enumerate(listed):
        row = safe(f"{finding.severity.value} {with_devices(finding)}: {finding.title}", _MOST_ROW)
        room -= len(row) + 1
        if room < 0:
            lines.append(f"{len(listed) - place} more; gdrtop check lists them")
            break
        lines.append(row)
    return Answer("\n".join(lines), status)


def unknown(why: str) -> str:
    """Return the line of a plugin that has no judgment, because of an error in its options or in gdrtop."""
    return f"GDRTOP {_WORDS[-1]} - {safe(why, _MOST_TEXT)}"


def _performance_data(node: CheckedNode) -> str:
    """Return the counts; an unknown one is left out, because it is not 0."""
    verdict = node.judgment.verdict
    statuses = Counter(finding.status for finding in node.judgment.findings)
    rows = []
    if verdict.gpus and verdict.state.has_counts:
        rows.append(f"gpus_direct={verdict.gpus_served};;;0;{verdict.gpus}")
    if verdict.critical is not None and verdict.warnings is not None:
        rows.append(f"critical={verdict.critical};;0;0")
        rows.append(f"warnings={verdict.warnings};0;;0")
    rows.append(f"checks_unknown={statuses[Status.UNKNOWN]};;;0")
    return " ".join(rows)
