"""The verdict with the findings: one object that decides word, color, counts and exit status."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from probes.queries.finding import Finding, Severity, Status
from probes.snapshot.verdict import State, Verdict

_GREEN = (State.ACTIVE, State.READY)


def with_severity(findings: Iterable[Finding], severity: Severity) -> tuple[Finding, ...]:
    """Return the found findings of this severity, without those that are part of another."""
    return tuple(
        finding
        for finding in findings
        if finding.status is Status.FOUND and finding.severity is severity and not finding.part_of
    )


def summarize(verdict: Verdict, findings: Iterable[Finding]) -> Verdict:
    """Add the counts; a critical finding, or a warning on the data path, makes a green verdict DEGRADED."""
    found = tuple(findings)
    critical, warnings = with_severity(found, Severity.CRITICAL), with_severity(found, Severity.WARNING)
    degrading = (*critical, *(finding for finding in warnings if finding.data_path))
    counted = replace(verdict, critical=len(critical), warnings=len(warnings))
    if not degrading or verdict.state not in _GREEN:
        return counted
    others = len(degrading) - 1
    more = f", and {others} other finding{'s' if others > 1 else ''}" if others else ""
    return replace(counted, state=State.DEGRADED, reason=f"{degrading[0].title}{more}")


def exit_status(verdict: Verdict) -> int:
    """Return the status for monitoring: 0 ok, 1 warnings, 2 critical, 3 unknown or not applicable.

    A node that GPUDirect RDMA does not apply to is never critical.
    """
    if verdict.state is State.NOT_APPLICABLE:
        return 3
    if verdict.critical or verdict.state is State.BROKEN:
        return 2
    if verdict.state is State.UNKNOWN:
        return 3
    return 1 if verdict.warnings or verdict.state is State.DEGRADED else 0
