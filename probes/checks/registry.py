"""All checks, and what they find on a node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from probes.base.text import printable
from probes.checks.gpu import devices as gpu_devices
from probes.checks.gpu import driver, modes, nvlink, xids
from probes.checks.modules import builds, loaded, refused
from probes.checks.nccl import files, gdr_level, gid, library, network, other_settings
from probes.checks.nic import (
    counter_limits,
    counters,
    kernel_log,
    port_rates,
    port_state,
    roce_gids,
    roce_mtu,
)
from probes.checks.nic import devices as nic_devices
from probes.checks.path import dmabuf, gdr_path, p2p_topology
from probes.checks.pcie import (
    acs,
    acs_direct_nic,
    device_control,
    errors,
    iommu,
    links,
    placement,
    read_requests,
)
from probes.checks.peermem import boot, in_use, on_disk, parameters, symbols
from probes.checks.system import device_files, kubernetes, libraries, memlock, perftest
from probes.queries.finding import (
    Area,
    Check,
    CheckEnded,
    Evidence,
    Finding,
    Outcome,
    Severity,
    Status,
    end_with,
    unknown,
)
from probes.snapshot.examination import Examination

# A new file of checks gets its line here. The order is the order of findings with the same severity.
AREAS: tuple[Area, ...] = (
    gdr_path.AREA,  # whether GPUDirect RDMA works at all comes before the reasons
    loaded.AREA,
    refused.AREA,
    builds.AREA,
    on_disk.AREA,
    symbols.AREA,
    parameters.AREA,
    boot.AREA,
    in_use.AREA,
    dmabuf.AREA,
    p2p_topology.AREA,
    errors.AREA,
    acs.AREA,
    acs_direct_nic.AREA,
    iommu.AREA,
    placement.AREA,
    links.AREA,
    device_control.AREA,
    read_requests.AREA,
    nic_devices.AREA,
    port_state.AREA,
    port_rates.AREA,
    roce_gids.AREA,
    roce_mtu.AREA,
    counters.AREA,
    counter_limits.AREA,
    kernel_log.AREA,
    gpu_devices.AREA,
    driver.AREA,
    modes.AREA,
    nvlink.AREA,
    xids.AREA,
    memlock.AREA,
    device_files.AREA,
    kubernetes.AREA,
    gdr_level.AREA,
    network.AREA,
    gid.AREA,
    library.AREA,
    files.AREA,
    other_settings.AREA,
    perftest.AREA,
    libraries.AREA,
)
CHECKS: tuple[Check, ...] = tuple(check for area in AREAS for check in area.checks)

_STATUSES = (Status.FOUND, Status.UNKNOWN, Status.PASSED)
_SEVERITIES = tuple(Severity)


def findings(
    examination: Examination, only: Collection[str] = (), skip: Collection[str] = ()
) -> tuple[Finding, ...]:
    """Run every check, the most severe findings first; what was not found comes last."""
    chosen = [check for check in CHECKS if (not only or check.id in only) and check.id not in skip]
    outcomes = [(check, _outcome(check, examination)) for check in chosen]
    return by_cost(_under_their_roots([_finding(check, outcome) for check, outcome in outcomes], outcomes))


def _under_their_roots(
    all_findings: list[Finding], outcomes: list[tuple[Check, Outcome]]
) -> Iterable[Finding]:
    """Put each finding under the one at the top of its chain of causes, which weighs what its parts weigh.

    In a circle of causes the check that is registered first is the root.
    """
    at_fault = {one.id: number for number, one in enumerate(all_findings) if one.status is Status.FOUND}
    causes = {}
    for check, outcome in outcomes:
        if outcome.status is Status.FOUND:
            named = (*outcome.part_of, *check.part_of)
            causes[check.id] = next((one for one in named if one in at_fault and one != check.id), "")
    tops = {name: _top(name, causes, at_fault) for name in at_fault}
    for one in all_findings:
        if one.id not in at_fault:
            yield one
        elif tops[one.id] != one.id:
            yield replace(one, part_of=tops[one.id])
        else:
            parts = [all_findings[at_fault[name]] for name, top in tops.items() if top == one.id]
            heaviest = min((part.severity for part in parts), key=_SEVERITIES.index)
            slows = any(part.data_path and part.severity is not Severity.NOTE for part in parts)
            slows = slows or (one.data_path and one.severity is heaviest)
            yield replace(one, severity=heaviest, data_path=slows)


def _top(name: str, causes: Mapping[str, str], order: Mapping[str, int]) -> str:
    """Follow the causes of a finding to their end."""
    chain = [name]
    while causes[chain[-1]]:
        cause = causes[chain[-1]]
        if cause in chain:
            return min(chain[chain.index(cause) :], key=lambda one: order[one])
        chain.append(cause)
    return chain[-1]


def by_cost(of: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort found before unknown before passed, by severity, and roots before what follows from them."""

    def rank(finding: Finding) -> tuple[int, int, bool]:
        return _STATUSES.index(finding.status), _SEVERITIES.index(finding.severity), bool(finding.part_of)

    return tuple(sorted(of, key=rank))


def _outcome(check: Check, examination: Examination) -> Outcome:
    try:
        for precondition in check.requires:
            end_with(precondition(examination))
        return check.judge(examination)
    except CheckEnded as ended:
        return ended.outcome
    except Exception as error:  # a check that fails says so, and spoils no other
        message = printable(f"{type(error).__name__}: {error}", 200)
        return unknown("this check failed: a fault of gdrtop", Evidence("gdrtop", message))


def _finding(check: Check, outcome: Outcome) -> Finding:
    return Finding(
        id=check.id,
        area=check.area,
        severity=outcome.severity or check.severity,
        status=outcome.status,
        title=check.title,
        evidence=outcome.evidence,
        cause=outcome.cause,
        fix=outcome.fix,
        reference=check.reference,
        devices=outcome.devices,
        ok=check.ok,
        impact=outcome.impact or check.impact,
        data_path=check.data_path if outcome.data_path is None else outcome.data_path,
    )
