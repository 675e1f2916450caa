"""All checks, and what they find on a node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from probes.base.text import printable
from probes.checks.gpu import devices as gpu
from probes.checks.gpu import driver as gpu_driver
from probes.checks.gpu import modes as gpu_modes
from probes.checks.gpu import nvlink
from probes.checks.gpu import xids as gpu_log
from probes.checks.modules import builds as module_builds
from probes.checks.modules import loaded as modules
from probes.checks.modules import refused as module_refusal
from probes.checks.nccl import files as nccl_files
from probes.checks.nccl import gdr_level as nccl_level
from probes.checks.nccl import gid as nccl_gid
from probes.checks.nccl import library as nccl_library
from probes.checks.nccl import network as nccl_network
from probes.checks.nccl import other_settings as job_settings
from probes.checks.nic import counter_limits, counters, port_rates
from probes.checks.nic import devices as nic
from probes.checks.nic import kernel_log as nic_log
from probes.checks.nic import port_state as ports
from probes.checks.nic import roce_gids as roce
from probes.checks.nic import roce_mtu as roce_packets
from probes.checks.path import dmabuf
from probes.checks.path import gdr_path as path
from probes.checks.path import p2p_topology as p2p
from probes.checks.pcie import area as pcie
from probes.checks.peermem import boot as peermem_boot
from probes.checks.peermem import in_use as peermem_use
from probes.checks.peermem import on_disk as peermem
from probes.checks.peermem import parameters as peermem_parameters
from probes.checks.peermem import symbols as peermem_build
from probes.checks.system import device_files, kubernetes, libraries
from probes.checks.system import memlock as environment
from probes.checks.system import perftest as tools
from probes.queries.finding import (
    Area,
    Check,
    CheckEnded,
    Evidence,
    Finding,
    Outcome,
    Severity,
    Status,
    unknown,
)
from probes.queries.module_need import DMABUF_MISSING, PEERMEM_MISSING
from probes.snapshot.examination import Examination

AREAS: tuple[Area, ...] = (
    path.AREA,  # whether it works at all comes before the reasons
    modules.AREA,
    module_refusal.AREA,
    module_builds.AREA,
    peermem.AREA,
    peermem_build.AREA,
    peermem_parameters.AREA,
    peermem_boot.AREA,
    peermem_use.AREA,
    dmabuf.AREA,
    p2p.AREA,
    pcie.AREA,
    *(
        nic.AREA,
        ports.AREA,
        port_rates.AREA,
        roce.AREA,
        roce_packets.AREA,
        counters.AREA,
        counter_limits.AREA,
        nic_log.AREA,
    ),
    *(gpu.AREA, gpu_driver.AREA, gpu_modes.AREA, nvlink.AREA, gpu_log.AREA),
    environment.AREA,
    device_files.AREA,
    kubernetes.AREA,
    nccl_level.AREA,
    nccl_network.AREA,
    nccl_gid.AREA,
    nccl_library.AREA,
    nccl_files.AREA,
    job_settings.AREA,
    tools.AREA,
    libraries.AREA,
)
CHECKS: tuple[Check, ...] = tuple(check for area in AREAS for check in area.checks)

# A finding -> the findings that cause it wherever both are found. Checks name others per node (part_of).
_CAUSES: dict[str, tuple[str, ...]] = {
    "no-gdr-path": (
        "nvidia-not-loaded",
        "mlx5-core-not-loaded",
        "mlx4-core-not-loaded",
        "ib-core-not-loaded",
        "ib-uverbs-not-loaded",
        "mlx5-ib-not-loaded",
        "mlx4-ib-not-loaded",
        "gpu-too-old-for-gdr",
        *DMABUF_MISSING,
        *PEERMEM_MISSING,
        "dmabuf-gpu-too-old",
    ),
    "gpu-without-driver": ("nvidia-not-loaded",),
    "gpu-missing-from-nvml": ("xid-79-fell-off-bus", "gpu-driver-start-failed"),
    "nic-without-driver": ("mlx5-core-not-loaded", "mlx4-core-not-loaded"),
    "nccl-ib-hca-entry-without-device": ("nic-without-driver", "nic-without-rdma-device"),
    "nic-without-rdma-device": ("mlx5-ib-not-loaded", "mlx4-ib-not-loaded"),
}

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
            named = (*outcome.part_of, *_CAUSES.get(check.id, ()))
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
