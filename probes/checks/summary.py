"""The verdict with what the checks found: one object that decides word, color, counts and exit status."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from probes.queries.finding import Finding, Severity, Status
from probes.snapshot.verdict import State, Verdict

_WELL = (State.ACTIVE, State.READY)


def found_of(findings: Iterable[Finding], severity: Severity) -> tuple[Finding, ...]:
    """Those of this severity that were found; of several with one cause the one that names it."""
    return tuple(
        one for one in findings if one.status is Status.FOUND and one.severity is severity and not one.part_of
    )


def summed_up(verdict: Verdict, findings: Iterable[Finding]) -> Verdict:
    """Add the counts; a critical finding, or a warning on the data path, makes a green verdict DEGRADED."""
    all_found = tuple(findings)
    critical, warnings = found_of(all_found, Severity.CRITICAL), found_of(all_found, Severity.WARNING)
    costly = (*critical, *(one for one in warnings if one.data_path))
    counted = replace(verdict, critical=len(critical), warnings=len(warnings))
    if not costly or verdict.state not in _WELL:
        return counted
    others = len(costly) - 1
    more = f", and {others} other finding{'s' if others > 1 else ''}" if others else ""
    return replace(counted, state=State.DEGRADED, reason=f"{costly[0].title}{more}")


def exit_status(verdict: Verdict) -> int:
    """Monitoring's numbers, of a verdict with its findings: 0 well, 1 warnings, 2 critical, 3 unknown or n/a.

    A node that GPUDirect RDMA does not apply to is never critical.
    """
    if verdict.state is State.NOT_APPLICABLE:
        return 3
    if verdict.critical or verdict.state is State.BROKEN:
        return 2
    if verdict.state is State.UNKNOWN:
        return 3
    return 1 if verdict.warnings or verdict.state is State.DEGRADED else 0
