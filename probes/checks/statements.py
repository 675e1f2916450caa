"""What gdrtop states of a node's paths, jobs and devices: made once, from the judgment, and drawn everywhere.

A panel, a mark, a job line or a document that concluded on its own could contradict another one. Each draws
these statements instead. tests/tui/test_statements.py collects what all outputs state of all simulated nodes,
and fails where two of them cannot both be true.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from types import MappingProxyType

from probes.base.evidence import Severity
from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpudirect import GdrPath, GpuDirectFacts
from probes.live.model.sample import (
    GDR_WORDS,
    WITHOUT_GDR,
    LiveJob,
    LiveProcess,
    LiveSample,
    PathJudgment,
    PathWord,
    Role,
)
from probes.live.model.transfer import OVER_TCP, TransferPath, TransferWord
from probes.queries.finding import Finding, Status, costs_bandwidth
from probes.snapshot.path_verdict import PathUsability, State, Usability
from probes.snapshot.verdict import Verdict


class Health(Enum):
    """How good or bad something is, the worst first."""

    CRITICAL = "critical"
    WARNING = "warning"
    UNKNOWN = "unknown"
    PLAIN = "plain"  # neither good nor bad: not needed, by design, or without GPU memory
    GOOD = "good"


# Paths


@frozen
class PathStatement:
    """Whether new jobs can use a path on this node, and why not."""

    path: GdrPath
    usable: Maybe[bool]
    health: Health  # PLAIN: not usable, but the other path is, or by design
    why: str = ""  # of a path that is not usable, or not known to be
    is_seen: bool = False  # running jobs use it, certainly or likely
    is_for_running_jobs: bool = False  # only new programs cannot use it: the driver or /dev refuses them
    is_preferred: bool = False  # what NCCL takes: DMA-BUF before peer memory


def path_statements(
    usability: Usability, verdict: Verdict, findings: Iterable[Finding]
) -> tuple[PathStatement, ...]:
    """Return what is true of both paths: their requirements, unless a finding or the verdict refutes them.

    () where the facts about the paths are unknown.
    """
    present = [finding for finding in findings if finding.is_present]
    refuted = {path: finding.title for finding in reversed(present) for path in finding.refutes}
    has_gpus = bool(usability.gpus)
    answers = [_path_answer(row, has_gpus, verdict, refuted.get(row.path, "")) for row in usability.paths]
    usable = [row.path for row, (answer, _) in zip(usability.paths, answers, strict=True) if answer is True]
    return tuple(
        PathStatement(
            row.path,
            answer,
            _path_health(answer, bool(usable), verdict),
            why,
            is_seen=row.path in usability.used,
            is_for_running_jobs=verdict.state is State.BROKEN
            and row.usable is True
            and row.path not in refuted,
            is_preferred=row.path in usable[:1],
        )
        for row, (answer, why) in zip(usability.paths, answers, strict=True)
    )


def _path_answer(
    row: PathUsability, has_gpus: bool, verdict: Verdict, refuted: str
) -> tuple[Maybe[bool], str]:
    if verdict.state is State.NOT_APPLICABLE:
        return False, verdict.reason
    if verdict.state is State.UNKNOWN and not has_gpus:
        return Unknown(Reason.NOT_RECORDED, "verdict", verdict.reason), verdict.reason
    if row.usable is not True:
        return row.usable, row.why
    if refuted:
        return False, refuted
    return (False, verdict.reason) if verdict.state is State.BROKEN else (True, "")


def _path_health(usable: Maybe[bool], is_other_usable: bool, verdict: Verdict) -> Health:
    if isinstance(usable, Unknown):
        return Health.UNKNOWN
    if usable:
        return Health.GOOD
    is_spare = is_other_usable or verdict.state is State.NOT_APPLICABLE
    return Health.PLAIN if is_spare else Health.CRITICAL


def stated_facts(facts: Maybe[GpuDirectFacts], paths: Sequence[PathStatement]) -> Maybe[GpuDirectFacts]:
    """Return the facts about the paths, usable where that is stated, and not where requirements are met."""
    if isinstance(facts, Unknown):
        return facts
    usable = {stated.path: stated.usable for stated in paths}
    dmabuf, peermem = (
        replace(state, usable=usable.get(state.path, state.usable)) for state in (facts.dmabuf, facts.peermem)
    )
    preferred = (
        next((stated.path for stated in paths if stated.is_preferred), None) if usable else facts.preferred
    )
    return replace(facts, dmabuf=dmabuf, peermem=peermem, preferred=preferred)


# Jobs


def members_of(job: LiveJob, sample: LiveSample) -> list[LiveProcess]:
    """Return the processes of a job."""
    pids = frozenset(job.pids)
    found = {process.pid: process for process in known(sample.processes, ()) if process.pid in pids}
    return [found[pid] for pid in job.pids if pid in found]


def jobs_with_rdma(sample: LiveSample) -> list[LiveJob]:
    """Return the jobs without GPU programs that are known not to use RDMA."""
    return [
        job
        for job in sample.jobs
        if job.role is not Role.GPU
        or any(
            process.transfer is not None or process.path.word is not PathWord.NO_NIC
            for process in members_of(job, sample)
        )
    ]


def use_health(path: PathJudgment, verdict: Verdict | None = None) -> Health:
    """Return how good it is that a process uses this path; `verdict`: of its node, if known.

    Copies through host memory are no fault where the hardware has no other path.
    """
    if path.word is PathWord.UNKNOWN:
        return Health.UNKNOWN
    if path.contradiction:
        return Health.WARNING
    if path.word in GDR_WORDS:
        return Health.GOOD
    is_by_design = verdict is not None and verdict.state is State.NOT_APPLICABLE
    return Health.WARNING if path.word in WITHOUT_GDR and not is_by_design else Health.PLAIN


def transfer_health(transfer: TransferPath) -> Health:
    """Return how good it is that KV caches take this path; TCP and copies that a setting asks for are."""
    word = transfer.word
    if word is TransferWord.UNKNOWN:
        return Health.UNKNOWN
    if word in (*OVER_TCP, TransferWord.STAGED):
        return Health.PLAIN if transfer.by_configuration else Health.WARNING
    return Health.PLAIN if word in (TransferWord.IDLE, TransferWord.LOCAL) else Health.GOOD


def process_health(process: LiveProcess, verdict: Verdict | None = None) -> Health:
    """Return the same of the path that is shown of a process: of an engine, that of its KV caches."""
    if process.transfer is not None:
        return transfer_health(process.transfer)
    return use_health(process.path, verdict)


def rank_health(process: LiveProcess, sample: LiveSample) -> Health:
    """Return the same of a process; without a NIC, a rank of a job on several nodes is at fault."""
    if process.transfer is not None:
        return transfer_health(process.transfer)
    if process.path.word is not PathWord.NO_NIC or process.role is not Role.NCCL:
        return use_health(process.path, sample.verdict)
    here = next((len(job.pids) for job in sample.jobs if job.id == process.job), 0)
    return Health.WARNING if known(process.world_size, 0) > here else Health.PLAIN


def job_health(job: LiveJob, processes: Sequence[LiveProcess], sample: LiveSample) -> Health:
    """Return how a job does: GOOD only where no finding concerns it, and its paths are known and used."""
    problems = findings_about(job, sample)
    if any(problem.severity is Severity.CRITICAL for problem in problems):
        return Health.CRITICAL
    of_ranks = {rank_health(process, sample) for process in processes}
    if problems or Health.WARNING in of_ranks:
        return Health.WARNING
    if Health.UNKNOWN in of_ranks:
        return Health.UNKNOWN
    is_silent = job.role is Role.NCCL and job.silent_seconds > 0
    return Health.GOOD if Health.GOOD in of_ranks and not is_silent else Health.PLAIN


def findings_about(job: LiveJob, sample: LiveSample) -> list[Finding]:
    """Return the findings that concern a job: its ranks, its settings, its GPUs or its NICs."""
    ends, nics = {*job.gpus, *job.nics}, sample.nic_names

    def is_of_job(finding: Finding) -> bool:
        named = (nics.get(device, device) for device in finding.devices)
        return not finding.pids.isdisjoint(job.pids) or (
            not finding.affected_jobs and not ends.isdisjoint(named)
        )

    return [
        finding
        for finding in sample.findings
        if job.name in finding.affected_jobs or (costs_bandwidth(finding) and is_of_job(finding))
    ]


# Devices

NO_IDS: Mapping[str, Collection[str]] = MappingProxyType({})


@frozen
class DeviceStatement:
    """What the findings say of a GPU, a NIC or a module that is itself at fault."""

    severity: Severity  # the worst
    findings: tuple[str, ...]  # their ids, the worst first


def marked_ids(finding: Finding, ids: Mapping[str, Collection[str]] = NO_IDS) -> tuple[str, ...]:
    """Return the devices at fault by a finding, each once."""
    return tuple(dict.fromkeys(name for device in finding.marked for name in ids.get(device, (device,))))


def device_statements(
    findings: Collection[Finding], ids: Mapping[str, Collection[str]] = NO_IDS
) -> dict[str, DeviceStatement]:
    """Return the devices and modules at fault by a critical finding or a warning.

    `ids`: of devices that stand under other names than those in findings, Topology.ids_by_bdf.
    """
    stated: dict[str, DeviceStatement] = {}
    for severity in (Severity.CRITICAL, Severity.WARNING):
        for finding in findings:
            if finding.status is not Status.FOUND or finding.severity is not severity:
                continue
            for device in marked_ids(finding, ids):
                before = stated.get(device)
                earlier = () if before is None else before.findings
                worst_so_far = severity if before is None else before.severity
                stated[device] = DeviceStatement(worst_so_far, (*earlier, finding.id))
    return stated
