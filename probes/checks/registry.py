"""All checks, and what they find on a node."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from probes.checks import (
    counter_limits,
    counters,
    device_files,
    dmabuf,
    environment,
    gpu,
    gpu_driver,
    gpu_log,
    gpu_modes,
    job_settings,
    kubernetes,
    libraries,
    module_builds,
    module_refusal,
    modules,
    nccl_files,
    nccl_gid,
    nccl_level,
    nccl_library,
    nccl_network,
    nic,
    nic_log,
    nvlink,
    p2p,
    path,
    pcie,
    peermem,
    peermem_boot,
    peermem_build,
    peermem_parameters,
    peermem_use,
    port_rates,
    ports,
    roce,
    roce_packets,
    tools,
)
from probes.checks.finding import Area, Check, Evidence, Finding, Outcome, Severity, Status, unsure
from probes.examination import Examination
from probes.text import printable

AREAS: tuple[Area, ...] = (
    path.AREA,  # whether it works at all stands before the reasons
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

_STATUSES = (Status.FOUND, Status.UNKNOWN, Status.PASSED)
_SEVERITIES = tuple(Severity)


def findings(
    examination: Examination, only: Collection[str] = (), skip: Collection[str] = ()
) -> tuple[Finding, ...]:
    """What every check says, the dearest first; what was not found stands behind what was."""
    chosen = [check for check in CHECKS if (not only or check.id in only) and check.id not in skip]
    outcomes = [(check, _outcome(check, examination)) for check in chosen]
    at_fault = {check.id for check, outcome in outcomes if outcome.status is Status.FOUND}
    return by_cost(_finding(check, outcome, at_fault) for check, outcome in outcomes)


def by_cost(of: Iterable[Finding]) -> tuple[Finding, ...]:
    """Found before unknown before passed, critical before warning before note."""
    return tuple(sorted(of, key=lambda one: (_STATUSES.index(one.status), _SEVERITIES.index(one.severity))))


def _outcome(check: Check, examination: Examination) -> Outcome:
    try:
        return check.judge(examination)
    except Exception as error:  # a check that fails says so, and spoils no other
        message = printable(f"{type(error).__name__}: {error}", 200)
        return unsure("this check failed: a fault of gdrtop", Evidence("gdrtop", message))


def _finding(check: Check, outcome: Outcome, at_fault: Collection[str]) -> Finding:
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
        part_of=next((root for root in outcome.part_of if root in at_fault), ""),
    )
