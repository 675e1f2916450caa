"""Findings of simulated nodes."""

from functools import cache

from probes.checks.registry import findings
from probes.live.verdict import examine_with_jobs
from probes.queries.finding import Finding, Status
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination


@cache
def examination_of(name: str) -> Examination:
    """Return the examination of a simulated node with its faults and its jobs."""
    return examine_with_jobs(SimulatedHost(name, clock=lambda: 1000.0))


@cache
def findings_on(name: str) -> dict[str, Finding]:
    """Return all findings by id, for example on "hgx-h100+acs-on"."""
    return {finding.id: finding for finding in findings(examination_of(name))}


def found_on(name: str) -> set[str]:
    """Return the ids of the found findings."""
    return {finding.id for finding in findings_on(name).values() if finding.status is Status.FOUND}
