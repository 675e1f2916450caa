"""The open findings that concern the path of a test: what the doctor knows about a slow result."""

from __future__ import annotations

from collections.abc import Iterable

from probes.bandwidth.model.planned_test import Pair
from probes.bandwidth.model.rating import OpenFinding
from probes.base.unknown import known
from probes.facts.rdma.devices import RdmaFacts
from probes.queries.finding import Finding, Severity, Status
from probes.queries.pcie_paths import functions_of
from probes.snapshot.condition import BELOW_LIMIT
from probes.snapshot.examination import Examination

MOST_FINDINGS = 4
_OF_JOBS = ("nccl", "environment")  # areas of findings about jobs, which a benchmark tool does not share


def open_findings(
    examination: Examination, findings: Iterable[Finding], pair: Pair
) -> tuple[OpenFinding, ...]:
    """Return the findings about GPU, NICs and the bridges between them, or about the whole data path.

    They are MOST_FINDINGS at most. Those that cost bandwidth come first; a finding is left out if its cause
    is another one of them.
    """
    devices = _devices_of(examination, pair)
    concerned = [
        finding
        for finding in findings
        if finding.status is Status.FOUND
        and finding.id != BELOW_LIMIT  # an earlier result is no reason for this one
        and (finding.data_path or finding.severity is not Severity.NOTE)
        and (devices & set(finding.devices) if finding.devices else _is_of_node(finding))
    ]
    ids = {finding.id for finding in concerned}
    causes = [finding for finding in concerned if finding.part_of not in ids]
    causes.sort(key=lambda finding: not finding.data_path)
    return tuple(OpenFinding(finding.id, finding.title) for finding in causes[:MOST_FINDINGS])


def _is_of_node(finding: Finding) -> bool:
    return finding.data_path and finding.area not in _OF_JOBS


def _devices_of(examination: Examination, pair: Pair) -> set[str]:
    """Return GPU and NICs by all their names, and the bridges above them up to where their paths meet."""
    rdma, functions = examination.node.rdma, functions_of(examination)
    names = {pair.nic, pair.far_nic} - {""}
    known_devices = rdma.devices if isinstance(rdma, RdmaFacts) else ()
    nics = {known(device.bdf, "") for device in known_devices if device.name in names}
    ends = {pair.gpu, *nics} - {""}
    chains = [functions[bdf].chain for bdf in ends if bdf in functions]
    shared = set.intersection(*map(set, chains)) if len(chains) > 1 else set()
    above = {bdf for chain in chains for bdf in chain}
    # Of the bridges that all ends share, only the lowest is on a path between them.
    lowest = max(shared, key=lambda bdf: chains[0].index(bdf), default="")
    return names | ends | (above - shared) | {lowest}
