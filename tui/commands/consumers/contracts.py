"""The contract of each consumer, by the name that `gdrtop check --for` accepts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TextIO

from probes.checks.judgment import exit_status
from probes.checks.new_jobs import Row, findings_in, rows_against_jobs
from probes.queries.finding import Status
from probes.slurm.slurm_node import LEADER, reason_for
from probes.snapshot.verdict import State, Verdict
from tui.commands.consumers.checked_node import (
    Answer,
    CheckedNode,
    Contract,
    counts_of,
    first_problem,
    in_short,
    safe,
    served,
    with_devices,
)
from tui.runtime.printing import source_word

# Kubernetes' Node Problem Detector: 80 bytes, and 0, 1 or anything else.
#
# Its custom plugins (pkg/custompluginmonitor): exit status 0 is OK, 1 is NonOK, which sets the condition,
# and any other is Unknown; standard output is trimmed, and cut after max_output_length bytes (80 by
# default).

MOST_BYTES = 80
_OK, _PROBLEM, _UNKNOWN = 0, 1, 3
_STATUSES = (_OK, _OK, _PROBLEM, _UNKNOWN)  # by the exit status of check


def node_problem_detector(node: CheckedNode) -> Answer:
    """Return what fits in 80 bytes; DEGRADED, and whatever keeps new jobs away, are the problem.

    A warning that costs a job nothing is in the text only: a condition says that the node has a problem.
    """
    verdict = node.judgment.verdict
    status = _STATUSES[exit_status(verdict)]
    if verdict.state is State.DEGRADED or rows_against_jobs(node.judgment, {}):
        status = _PROBLEM
    # The label of a recording alone has 80 bytes.
    text = f"{source_word(node.origin)} {in_short(node.judgment)}".strip()
    return Answer(safe(text, MOST_BYTES), status)


# Nagios, Icinga and whatever runs monitoring plugins: status word, text, performance data.
#
# Monitoring Plugins Development Guidelines, "Plugin Output" and "Performance data":
# 'label'=value[UOM];[warn];[crit];[min];[max], separated by spaces, after the first "|". The first line is
# what is alerted; the lines below are the long text.

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


# Slurm and LBNL Node Health Check (NHC): silent unless the node must get no new jobs.
#
# Slurm: a Prolog that fails drains the node, so a warning must not fail. HealthCheckProgram has to call
# scontrol itself, which refuses DRAIN without a reason (slurm.conf(5)). NHC: silent and 0 is healthy, and
# any other status takes the node offline; `die` passes its text to a shell, in single quotes.

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


CONTRACTS: Mapping[str, Contract] = {
    "nagios": nagios,
    "npd": node_problem_detector,
    "nhc": nhc,
    "slurm": slurm,
}


def write_for(consumer: str, node: CheckedNode, out: TextIO) -> int:
    """Print what a consumer expects, and return the exit status that it expects."""
    answer = CONTRACTS[consumer](node)
    if answer.text:
        out.write(f"{answer.text}\n")
    return answer.status
