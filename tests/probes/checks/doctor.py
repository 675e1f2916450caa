"""The doctor on simulated nodes."""

from functools import cache

from probes.checks.registry import findings
from probes.queries.finding import Finding, Status
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine


@cache
def examination_of(name: str) -> Examination:
    """A simulated node, with its faults, as the doctor sees it."""
    return examine(SimulatedHost(name, clock=lambda: 1000.0))


@cache
def findings_on(name: str) -> dict[str, Finding]:
    """All findings by id, on "hgx-h100+acs-on"."""
    return {finding.id: finding for finding in findings(examination_of(name))}


def found_on(name: str) -> set[str]:
    """The ids that are found."""
    return {finding.id for finding in findings_on(name).values() if finding.status is Status.FOUND}
