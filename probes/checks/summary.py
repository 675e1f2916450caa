"""The verdict with what the doctor found: one word, one line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from probes.checks.finding import Finding, Severity, Status
from probes.checks.verdict import State, Verdict

_WELL = (State.ACTIVE, State.READY)
_NAMED = 3  # findings named in the line; the rest is counted


def found_of(findings: Iterable[Finding], severity: Severity) -> tuple[Finding, ...]:
    """Those of this severity that were found; of several with one cause the one that names it."""
    return tuple(
        one for one in findings if one.status is Status.FOUND and one.severity is severity and not one.part_of
    )


def summed_up(verdict: Verdict, findings: Iterable[Finding]) -> Verdict:
    """The node's verdict, DEGRADED where it is well but a critical finding stands; warnings are named."""
    all_found = tuple(findings)
    critical, warnings = found_of(all_found, Severity.CRITICAL), found_of(all_found, Severity.WARNING)
    state, reason = verdict.state, verdict.reason
    if critical and state in _WELL:
        state, reason = State.DEGRADED, critical[0].title
    if warnings:
        names = ", ".join(one.id for one in warnings[:_NAMED])
        more = f" and {len(warnings) - _NAMED} more" if len(warnings) > _NAMED else ""
        reason = f"{reason} · {len(warnings)} warning{'s' if len(warnings) > 1 else ''}: {names}{more}"
    return replace(verdict, state=state, reason=reason, critical=len(critical), warnings=len(warnings))


def exit_status(verdict: Verdict, findings: Iterable[Finding]) -> int:
    """Monitoring's numbers: 0 fine, 1 warnings, 2 critical, 3 unknown or not applicable."""
    all_found = tuple(findings)
    if found_of(all_found, Severity.CRITICAL) or verdict.state is State.BROKEN:
        return 2
    if verdict.state in (State.UNKNOWN, State.NOT_APPLICABLE):
        return 3
    return 1 if verdict.state is State.DEGRADED or found_of(all_found, Severity.WARNING) else 0
