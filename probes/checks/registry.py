"""All checks, and their findings on a node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, TypeAlias

from probes.base.evidence import Evidence, Severity
from probes.base.plan import Plan, Step, make_plan
from probes.base.text import printable
from probes.checks.gpu import devices as gpu_devices
from probes.checks.gpu import driver, fabric, modes, nvlink, smmu
from probes.checks.live import jobs as live_jobs
from probes.checks.live import ports as live_ports
from probes.checks.modules import builds, loaded, refused
from probes.checks.nccl import engines, gdr_settings, library, logs, network, other_settings
from probes.checks.nic import (
    bit_errors,
    cables,
    counters,
    dgx_spark,
    floors,
    optics,
    partition_keys,
    port_rates,
    port_state,
    roce_gids,
    roce_mtu,
)
from probes.checks.nic import devices as nic_devices
from probes.checks.path import dmabuf, gdr_path, vendor_paths
from probes.checks.pcie import acs, device_control, errors, iommu, links, placement
from probes.checks.peermem import boot, in_use, on_disk
from probes.checks.system import combinations, cpus, device_files, kubernetes, limits, site_checks, tools
from probes.plans.common import REBOOT_ENDS_JOBS, reboot_plan
from probes.queries.finding import (
    Area,
    Check,
    CheckEnded,
    Finding,
    Outcome,
    Scope,
    Status,
    Texts,
    end_with,
    pid_name,
    unknown,
)
from probes.queries.jobs import job_plan
from probes.queries.pcie_paths import DeviceNames
from probes.snapshot.examination import Examination

_OF_VARIABLES = (gdr_settings, network, gdr_settings.GIDS, library, other_settings.FILES, other_settings)
# Add a new file of checks here. Findings with the same severity are listed in this order, in which an area of
# a file may have a place of its own.
_ORDER: tuple[ModuleType | Area, ...] = (
    *(gdr_path, loaded, refused, builds),  # whether GPUDirect RDMA works at all comes before the reasons
    *(on_disk, in_use.PARAMETERS, boot, in_use),
    *(dmabuf, vendor_paths, gdr_path.REFUSALS, vendor_paths.DATA_DIRECT),
    *(errors, acs, iommu, placement.PASSTHROUGH, placement, acs.HOST_BRIDGES, links, device_control),
    *(nic_devices, port_state, partition_keys, port_rates, dgx_spark, roce_gids, roce_mtu, roce_gids.RAILS),
    *(cables, counters, bit_errors, optics, nic_devices.KERNEL_LOG, floors),
    *(gpu_devices, driver, smmu, modes, nvlink, fabric, nvlink.ACROSS_NODES, driver.XIDS),
    *(limits.RDMA_CGROUP, live_jobs.HUNG_TASKS, limits, cpus, device_files, kubernetes, combinations),
    *_OF_VARIABLES,
    *(engines.NVSHMEM_CHECKS, engines.AREA, other_settings.SEGMENTS, engines, logs),
    *(live_jobs, live_ports, builds.NEXT_BOOT, tools, site_checks),
)


def _areas(places: Iterable[ModuleType | Area]) -> tuple[Area, ...]:
    """Return the areas in their order; those of a file without the ones that have a place of their own."""
    apart = [place for place in _ORDER if isinstance(place, Area)]
    return tuple(
        area
        for place in places
        for area in ((place,) if isinstance(place, Area) else vars(place).values())
        if isinstance(area, Area) and (area is place or area not in apart)
    )


VARIABLE_AREAS = _areas(_OF_VARIABLES)
"""The checks of environment variables and nccl.conf, by which `gdrtop env` judges settings, too."""
AREAS = _areas(_ORDER)
CHECKS: tuple[Check, ...] = tuple(check for area in AREAS for check in area.checks)

FAILED_BY_A_BUG = "this check failed because of a bug in gdrtop"
"""The cause of a check that could not run because it raised an exception."""
_STATUSES = (Status.FOUND, Status.SILENCED, Status.UNKNOWN, Status.PASSED)
_SEVERITIES = tuple(Severity)
Outcomes: TypeAlias = "Sequence[tuple[Check, Outcome]]"


def checks_of(examination: Examination) -> tuple[Check, ...]:
    """Return all checks of a node: gdrtop's, and those that its site has added."""
    return (*CHECKS, *site_checks.checks_of_site(examination))


def run_checks(examination: Examination, checks: Iterable[Check]) -> Outcomes:
    """Run checks, and return how each ended."""
    return tuple((check, _outcome(check, examination)) for check in checks)


def findings_of(outcomes: Outcomes, examination: Examination) -> tuple[Finding, ...]:
    """Return found, unknown and passed findings, in the order in which every list shows them."""
    names = DeviceNames(examination)
    made = [_finding(check, outcome, names) for check, outcome in outcomes]
    return tuple(sorted(_group_by_cause(made, outcomes, names), key=_rank))


def findings(
    examination: Examination, only: Collection[str] = (), skip: Collection[str] = ()
) -> tuple[Finding, ...]:
    """Run all checks, or those whose ids are chosen; return found, unknown and passed, by severity."""
    every = checks_of(examination)
    chosen = [check for check in every if (not only or check.id in only) and check.id not in skip]
    return findings_of(run_checks(examination, chosen), examination)


def _rank(finding: Finding) -> tuple[int, int, bool, bool]:
    """Sort by status, then severity, then causes before their consequences, then the data path first."""
    status, severity = _STATUSES.index(finding.status), _SEVERITIES.index(finding.severity)
    return status, severity, bool(finding.part_of), not finding.data_path


def _group_by_cause(all_findings: list[Finding], outcomes: Outcomes, names: DeviceNames) -> Iterable[Finding]:
    """Put each finding under the root of its chain of causes; the root gets the highest severity below it.

    What has a silenced cause is silenced, too: findings with one cause are one finding. A root that says what
    a job loses gets the fix of the finding that explains it.
    """
    found = {finding.id: number for number, finding in enumerate(all_findings) if finding.is_present}
    explains = {check.id for check, _ in outcomes if check.explains}
    of_node = {check.id for check, _ in outcomes if check.scope is Scope.NODE}
    effects = {check.id for check, outcome in outcomes if outcome.title}
    roots = _roots([pair for pair in outcomes if pair[0].id in found], names)
    for finding in all_findings:
        if finding.id not in found:
            yield finding
        elif roots[finding.id] != finding.id:
            root = all_findings[found[roots[finding.id]]]
            if root.status is Status.SILENCED:
                finding = replace(finding, status=root.status, silence=root.silence)
            # What is at fault is marked, and not what it affects.
            at_fault = {name for device in root.marked for name in names.of(device)}
            marked = finding.marked
            if at_fault or root.id in of_node:
                marked = tuple(device for device in marked if not names.of(device).isdisjoint(at_fault))
            yield replace(finding, part_of=root.id, marked=marked)
        else:
            parts = [all_findings[found[name]] for name, root in roots.items() if root == finding.id]
            if finding.status is Status.FOUND:
                parts = [part for part in parts if part.status is Status.FOUND]
            severity = min((part.severity for part in parts), key=_SEVERITIES.index)
            data_path = any(part.data_path and part.severity is not Severity.NOTE for part in parts)
            data_path = data_path or (finding.data_path and finding.severity is severity)
            gains = finding.gains or next((part.gains for part in parts if part.gains), ())
            pids = finding.pids.union(*(part.pids for part in parts))
            jobs = tuple(dict.fromkeys(job for part in parts for job in part.jobs))
            finding = replace(finding, severity=severity, data_path=data_path, gains=gains, pids=pids)
            finding = replace(finding, part_jobs=jobs)
            if finding.id in effects and (why := next((p for p in parts if p.id in explains), None)):
                finding = replace(finding, fix=why.fix or finding.fix, explained_by=why.title)
            yield finding


def _roots(present: Outcomes, names: DeviceNames) -> dict[str, str]:
    """Return the root of each finding by id, its own id for a root.

    A cause shares a device, a job or a process with each subject of its consequence, or concerns the whole
    node. No cause is taken that would close a circle: in one, the check that is registered first is the root.
    """
    by_id = {check.id: (check, outcome) for check, outcome in present}
    roots = {name: name for name in by_id}
    for check, outcome in reversed(present):
        parts = [name for name, root in roots.items() if root == check.id]
        candidates = dict.fromkeys((*outcome.part_of, *check.part_of))
        causes = [name for name in candidates if name in by_id and roots[name] != check.id]
        if causes and (cause := _cause(outcome, [by_id[name] for name in causes], names)):
            roots.update(dict.fromkeys(parts, roots[cause]))
    return roots


def _cause(outcome: Outcome, candidates: Outcomes, names: DeviceNames) -> str:
    """Return the id of the first candidate that explains all of an outcome; "" for none."""
    subjects = _subjects(outcome, names)
    for check, cause in candidates:
        about = _about(check, cause, names)
        if not about or all(not about.isdisjoint(subject) for subject in subjects):
            return check.id
    return ""


def _about(check: Check, outcome: Outcome, names: DeviceNames) -> frozenset[str]:
    """Return by all their names the devices, jobs and processes of a cause; nothing: the whole node."""
    if check.scope is Scope.NODE:
        return frozenset()
    ends = frozenset(name for device in outcome.devices for name in names.of(device))
    return ends.union(outcome.jobs, map(pid_name, outcome.pids))


def _subjects(outcome: Outcome, names: DeviceNames) -> list[frozenset[str]]:
    """Return what a cause of this outcome has to share, with the bridges above the devices."""
    subjects = outcome.subjects
    if subjects is None:
        each = [device for device in outcome.devices if names.of(device)]
        subjects = tuple(frozenset((name,)) for name in each or [*map(pid_name, outcome.pids), *outcome.jobs])
    return [subject.union(*(names.on_path(name) for name in subject)) for subject in subjects]


def _outcome(check: Check, examination: Examination) -> Outcome:
    try:
        for precondition in check.requires:
            end_with(precondition(examination))
        outcome = check.judge(examination)
        if outcome.status is Status.FOUND and outcome.fix is None and (plan := _plan_of(check.texts())):
            outcome = replace(outcome, fix=plan)
        return outcome
    except CheckEnded as ended:
        return ended.outcome
    except Exception as error:  # a check that fails must not affect the others
        message = printable(f"{type(error).__name__}: {error}", 200)
        return unknown(FAILED_BY_A_BUG, Evidence("gdrtop", message))


def _plan_of(texts: Texts) -> Plan | None:
    """Return the plan of the texts; None: each node has its own, or there is none."""
    parts = ((step.startswith("#"), *step[2:].partition(" | ")) for step in texts.steps)
    steps = [Step(why, tuple(command.split()), needs_root) for needs_root, why, _, command in parts]
    if texts.plan == "job":
        return job_plan(texts.fix, *steps, note=texts.note)
    if texts.plan == "reboot":
        return reboot_plan(texts.fix, *steps, disturbs=texts.disturbs or REBOOT_ENDS_JOBS, note=texts.note)
    return make_plan(texts.fix, *steps, disturbs=texts.disturbs, note=texts.note) if texts.fix else None


def _finding(check: Check, outcome: Outcome, names: DeviceNames) -> Finding:
    devices = names.once(outcome.devices)
    modules = tuple(device for device in devices if not names.of(device))

    def late(text: str) -> Any:
        return lambda: getattr(check.texts(), text)

    return Finding(
        id=check.id,
        area=check.area,
        severity=outcome.severity or check.severity,
        status=outcome.status,
        title=outcome.title or late("title"),
        check_title=check.texts().title if outcome.title else "",
        evidence=outcome.evidence,
        cause=outcome.cause,
        fix=outcome.fix,
        reference=late("source"),
        devices=devices,
        ok=late("ok"),
        impact=outcome.impact or late("impact"),
        data_path=check.data_path if outcome.data_path is None else outcome.data_path,
        takes=outcome.takes,
        ranks=outcome.ranks,
        jobs=outcome.jobs,
        pids=outcome.pids,
        since=outcome.since,
        silence=outcome.silence,
        gains=outcome.gains,
        refutes=outcome.refutes,
        marked=(modules or devices) if check.scope is Scope.DEVICES else modules,
    )
