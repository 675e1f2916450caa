"""All checks, and their findings on a node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from probes.base.evidence import Evidence, Severity
from probes.base.text import printable
from probes.checks.gpu import devices as gpu_devices
from probes.checks.gpu import driver, fabric, imex, modes, nvlink, xids
from probes.checks.live import jobs as live_jobs
from probes.checks.live import ports as live_ports
from probes.checks.modules import builds, loaded, refused
from probes.checks.nccl import (
    engines,
    expandable_segments,
    files,
    gdr_level,
    gid,
    library,
    log_network,
    log_path,
    log_settings,
    network,
    nvshmem,
    other_settings,
    ucx_distance,
)
from probes.checks.nic import (
    counter_limits,
    counters,
    kernel_log,
    port_rates,
    port_state,
    roce_gids,
    roce_mtu,
    roce_qos,
    roce_rails,
)
from probes.checks.nic import devices as nic_devices
from probes.checks.path import data_direct, dmabuf, gdr_path, p2p_topology, vendor_paths
from probes.checks.pcie import (
    acs,
    device_control,
    errors,
    host_bridges,
    iommu,
    links,
    passthrough,
    placement,
)
from probes.checks.peermem import boot, in_use, on_disk, parameters, symbols
from probes.checks.system import (
    combinations,
    device_files,
    hung_tasks,
    kubernetes,
    libraries,
    memlock,
    next_boot,
    perftest,
    rdma_cgroup,
)
from probes.plans.packages import with_initramfs_command
from probes.queries.finding import Area, Check, CheckEnded, Finding, Outcome, Status, end_with, unknown
from probes.snapshot.examination import Examination

VARIABLE_AREAS: tuple[Area, ...] = (
    *(gdr_level.AREA, network.AREA, gid.AREA, library.AREA, files.AREA),
    *(other_settings.AREA, other_settings.UCX),
)
"""The checks of environment variables and nccl.conf, by which `gdrtop env` judges settings, too."""
# Add a new file of checks here. Findings with the same severity are listed in this order.
AREAS: tuple[Area, ...] = (
    # Whether GPUDirect RDMA works at all comes before the reasons.
    *(gdr_path.AREA, gdr_path.GPUS),
    *(loaded.AREA, refused.AREA, builds.AREA),
    *(on_disk.AREA, symbols.AREA, parameters.AREA, boot.AREA, in_use.AREA),
    *(dmabuf.AREA, vendor_paths.AREA, p2p_topology.AREA, data_direct.AREA),
    *(errors.AREA, acs.AREA, iommu.AREA, passthrough.AREA, placement.AREA),
    *(host_bridges.AREA, links.AREA, device_control.AREA),
    *(nic_devices.AREA, port_state.AREA, port_rates.AREA),
    *(roce_gids.AREA, roce_mtu.AREA, roce_qos.AREA, roce_rails.AREA),
    *(counters.AREA, counter_limits.AREA, kernel_log.AREA),
    *(gpu_devices.AREA, driver.AREA, modes.AREA, nvlink.AREA, fabric.AREA, imex.AREA, xids.AREA),
    *(rdma_cgroup.AREA, hung_tasks.AREA, memlock.AREA, device_files.AREA, kubernetes.AREA),
    combinations.AREA,
    *VARIABLE_AREAS,
    *(nvshmem.AREA, engines.AREA, expandable_segments.AREA, ucx_distance.AREA),
    *(log_network.AREA, log_path.AREA, log_settings.AREA),
    *(live_jobs.AREA, live_ports.AREA, live_ports.BANDWIDTH),
    *(next_boot.AREA, perftest.AREA, libraries.AREA),
)
CHECKS: tuple[Check, ...] = tuple(check for area in AREAS for check in area.checks)

FAILED_BY_A_BUG = "this check failed because of a bug in gdrtop"
"""The cause of a check that could not run because it raised an exception."""
_STATUSES = (Status.FOUND, Status.SILENCED, Status.UNKNOWN, Status.PASSED)
_SEVERITIES = tuple(Severity)


Outcomes: TypeAlias = "Sequence[tuple[Check, Outcome]]"


def run_checks(examination: Examination, checks: Iterable[Check]) -> Outcomes:
    """Run checks, and return how each ended."""
    return tuple((check, _outcome(check, examination)) for check in checks)


def findings_of(outcomes: Outcomes) -> tuple[Finding, ...]:
    """Return found, unknown and passed findings, in the order in which every list shows them."""
    grouped = _group_by_cause([_finding(check, outcome) for check, outcome in outcomes], outcomes)
    return tuple(sorted(grouped, key=_rank))


def findings(
    examination: Examination, only: Collection[str] = (), skip: Collection[str] = ()
) -> tuple[Finding, ...]:
    """Run all checks, or those whose ids are chosen; return found, unknown and passed, by severity."""
    chosen = [check for check in CHECKS if (not only or check.id in only) and check.id not in skip]
    return findings_of(run_checks(examination, chosen))


def _rank(finding: Finding) -> tuple[int, int, bool, bool]:
    """Sort by status, then severity, then causes before their consequences, then the data path first."""
    status, severity = _STATUSES.index(finding.status), _SEVERITIES.index(finding.severity)
    return status, severity, bool(finding.part_of), not finding.data_path


def _group_by_cause(all_findings: list[Finding], outcomes: Outcomes) -> Iterable[Finding]:
    """Put each finding under the root of its chain of causes; the root gets the highest severity below it.

    In a circle of causes the check that is registered first is the root. What has a silenced cause is
    silenced, too: findings with one cause are one finding.
    """
    found = {finding.id: number for number, finding in enumerate(all_findings) if finding.is_present}
    causes = {}
    for check, outcome in outcomes:
        if check.id in found:
            candidates = (*outcome.part_of, *check.part_of)
            causes[check.id] = next((name for name in candidates if name in found and name != check.id), "")
    roots = {name: _root(name, causes, found) for name in found}
    for finding in all_findings:
        if finding.id not in found:
            yield finding
        elif roots[finding.id] != finding.id:
            root = all_findings[found[roots[finding.id]]]
            if root.status is Status.SILENCED:
                finding = replace(finding, status=root.status, silence=root.silence)
            yield replace(finding, part_of=root.id)
        else:
            parts = [all_findings[found[name]] for name, root in roots.items() if root == finding.id]
            if finding.status is Status.FOUND:
                parts = [part for part in parts if part.status is Status.FOUND]
            severity = min((part.severity for part in parts), key=_SEVERITIES.index)
            data_path = any(part.data_path and part.severity is not Severity.NOTE for part in parts)
            data_path = data_path or (finding.data_path and finding.severity is severity)
            gains = finding.gains or next((part.gains for part in parts if part.gains), ())
            pids = finding.pids.union(*(part.pids for part in parts))
            yield replace(finding, severity=severity, data_path=data_path, gains=gains, pids=pids)


def _root(name: str, causes: Mapping[str, str], order: Mapping[str, int]) -> str:
    chain = [name]
    while causes[chain[-1]]:
        cause = causes[chain[-1]]
        if cause in chain:
            return min(chain[chain.index(cause) :], key=lambda name: order[name])
        chain.append(cause)
    return chain[-1]


def _outcome(check: Check, examination: Examination) -> Outcome:
    try:
        for precondition in check.requires:
            end_with(precondition(examination))
        outcome = check.judge(examination)
        if outcome.fix is None:
            return outcome
        return replace(outcome, fix=with_initramfs_command(examination, outcome.fix))
    except CheckEnded as ended:
        return ended.outcome
    except Exception as error:  # a check that fails must not affect the others
        message = printable(f"{type(error).__name__}: {error}", 200)
        return unknown(FAILED_BY_A_BUG, Evidence("gdrtop", message))


def _finding(check: Check, outcome: Outcome) -> Finding:
    return Finding(
        id=check.id,
        area=check.area,
        severity=outcome.severity or check.severity,
        status=outcome.status,
        title=outcome.title or check.title,
        evidence=outcome.evidence,
        cause=outcome.cause,
        fix=outcome.fix,
        reference=check.reference,
        devices=outcome.devices,
        ok=check.ok,
        impact=outcome.impact or check.impact,
        data_path=check.data_path if outcome.data_path is None else outcome.data_path,
        takes=outcome.takes,
        ranks=outcome.ranks,
        jobs=outcome.jobs,
        pids=outcome.pids,
        since=outcome.since,
        silence=outcome.silence,
        gains=outcome.gains,
    )
