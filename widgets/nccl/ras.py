"""RAS in words: what is sent and what it may do to the job, what the job answers, and its events."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.text import plural, printable
from probes.base.unknown import Unknown, known
from probes.host.ras import DIAGNOSTICS, MONITOR, REPORTS
from probes.live.ras.findings import RasFinding, Stall
from probes.live.ras.targets import LocalProcesses, RasDecision, RasTarget
from probes.nccl.ras import BAD, Diagnostics, RasEvent, RasReport
from widgets.base.health import SEVERITY_MARKS
from widgets.base.lines import Line, Tone, wrapped

_AGAIN = "Compare two reports to see whether they move (--interval 10)."
_OTHER_SHOWN = 5
_INDENT = "  "


def notice(target: RasTarget, command: str, decision: RasDecision) -> list[str]:
    """Return what is sent, and what it may do to the job."""
    jobs = ", ".join(job.name for job in target.jobs)
    texts = [f"gdrtop sends '{command}' to NCCL's RAS service on {target.name}, used by {jobs}."]
    if command in REPORTS:
        texts.append(
            "The job gathers the state of all its ranks, over its own connections, and responds once."
        )
    elif command == MONITOR:
        texts.append("The job sends its RAS events until the connection is closed. It gathers nothing.")
    elif command == DIAGNOSTICS:
        texts.append("The job runs diagnostics in all its processes, on all its nodes, and responds once.")
    texts += [f"Warning: {warning}." for warning in decision.warnings]
    return [printable(text, 600) for text in texts]


def report_lines(
    report: RasReport,
    found: Sequence[RasFinding],
    stalls: Sequence[Stall],
    jobs: int,
    width: int,
    again: str = _AGAIN,
) -> list[Line]:
    """Return a report: the job, its communicators, what is wrong.

    `again`: a sentence on how to see whether unequal operation counts move.
    """
    texts = [_job_text(report)]
    if jobs > 1:
        texts.append(f"One of the {jobs} jobs on this port has responded.")
    for group in report.groups:
        errors = ", ".join(group.errors) or "OK"
        texts.append(
            f"{plural(group.communicators, 'communicator')} of {group.ranks_per_communicator} ranks on"
            f" {plural(group.nodes, 'node')} ({group.ranks_per_node} per node):"
            f" {group.status}, {errors}"
        )
    lines = [row for text in texts for row in _wrapped(text, width)]
    for finding in found:
        mark, tone, _ = SEVERITY_MARKS[finding.severity]
        lines += _wrapped(f"{mark} {finding.text}", width, _INDENT, tone)
        if finding.explanation:
            lines += _wrapped(finding.explanation, width, _INDENT * 2)
    lines += [row for text in _notes(report, stalls, again) for row in _wrapped(text, width)]
    return lines


def _wrapped(text: str, width: int, indent: str = "", tone: Tone = Tone.PLAIN) -> list[Line]:
    return wrapped(text, width, tone, indent, hanging=_INDENT)


def _job_text(report: RasReport) -> str:
    counts = ((report.nodes, "node", "nodes"), (report.processes, "process", "processes"))
    parts = [f"NCCL {known(report.nccl, '?')}"]
    for number, noun, nouns in (*counts, (report.gpus, "GPU", "GPUs")):
        if not isinstance(number, Unknown):
            parts.append(plural(number, noun, nouns))
    if not isinstance(report.collected_seconds, Unknown):
        parts.append(f"collected in {report.collected_seconds:.2f} s")
    return ", ".join(parts)


def _notes(report: RasReport, stalls: Sequence[Stall], again: str) -> list[str]:
    stalled = {stall.hash for stall in stalls}
    unequal = [
        communicator
        for communicator in report.communicators
        if communicator.counts and communicator.hash not in stalled
    ]
    notes = []
    if unequal:
        have = "has" if len(unequal) == 1 else "have"
        notes.append(
            f"{plural(len(unequal), 'communicator')} {have} unequal operation counts, which is normal in a"
            f" running job. {again}"
        )
    if report.timeouts:
        notes.append(f"RAS had {plural(report.timeouts, 'timeout')} while gathering the data.")
    if not report.is_complete:
        notes.append("The response is cut off.")
    notes += [f"not recognized: {line}" for line in report.other[:_OTHER_SHOWN]]
    if len(report.other) > _OTHER_SHOWN:
        notes.append(f"{len(report.other) - _OTHER_SHOWN} more lines were not recognized")
    return notes


def diagnostics_lines(diagnostics: Diagnostics, width: int) -> list[Line]:
    """Return the results of DIAGNOSTICS, those to review first."""
    review = diagnostics.to_review
    ok = len(diagnostics.lines) - len(review)
    lines = _wrapped(f"{plural(len(review), 'result')} to review, {ok} OK", width)
    for result in sorted(diagnostics.lines, key=lambda result: result.is_ok):
        mark, tone = ("✓", Tone.GOOD) if result.is_ok else ("▲", Tone.WARNING)
        process = f" ({result.process})" if result.process else ""
        lines += _wrapped(f"{mark} {result.text}{process}", width, _INDENT, tone)
    lines += [line for text in diagnostics.other for line in _wrapped(text, width, tone=Tone.DIM)]
    if diagnostics.left_out:
        lines += _wrapped(f"{plural(diagnostics.left_out, 'more line')} not shown", width)
    return lines


def event_text(event: RasEvent, local: LocalProcesses) -> str:
    """Return an event with the process as the node knows it."""
    mark = "✗ " if event.kind in BAD else ""
    if isinstance(event.process, Unknown):
        return f"{event.at}  {mark}{event.kind} {event.details}"
    live = local.find(event.process)
    process = event.process
    gpus = "".join(f", GPU{number}" for number in process.nvml[:8])
    who = f"pid {process.pid} on node {process.node}{gpus}" if live is None else local.text(live)
    return f"{event.at}  {mark}{who} {event.meaning}"
