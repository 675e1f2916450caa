"""The verdict with what the node's jobs do now: whether they use GPUDirect RDMA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from probes.base.unknown import Maybe, Unknown
from probes.facts.gpudirect import GdrPath
from probes.facts.node import Node
from probes.host.protocol import Host
from probes.live.model.sample import LiveJob, LiveProcess, LiveSample, PathWord, Role
from probes.live.processes.jobs import group, path_summary
from probes.live.processes.log_reading import read_job_logs
from probes.live.processes.processes import ProcessReader
from probes.snapshot.examination import Examination, examine
from probes.snapshot.gdr_use import joined_sentences
from probes.snapshot.verdict import State, Verdict

_WITHOUT = (PathWord.STAGED, PathWord.TCP)
_PATHS = {PathWord.DMABUF: GdrPath.DMABUF, PathWord.PEERMEM: GdrPath.PEERMEM}


def with_jobs(
    verdict: Verdict, processes: Maybe[tuple[LiveProcess, ...]], jobs: tuple[LiveJob, ...]
) -> Verdict:
    """Return the verdict as NCCL's ranks use the node; a verdict that is not green stays as it is.

    A rank on TCP, or one that copies through host memory, makes it DEGRADED. A rank that is proven to use
    GPUDirect RDMA makes it ACTIVE; a likely one is only named.
    """
    if verdict.state not in (State.ACTIVE, State.READY):
        return verdict
    ranks_of = list(_nccl_ranks(processes, jobs))
    for job, ranks in ranks_of:
        if any(rank.path.word in _WITHOUT for rank in ranks):
            reason = joined_sentences(_text(job, ranks), "running jobs keep their path until they restart")
            return replace(verdict, state=State.DEGRADED, reason=reason)
    if verdict.state is State.ACTIVE:
        return verdict
    for job, ranks in ranks_of:
        proven = [rank.path.word for rank in ranks if rank.path.word in _PATHS and not rank.path.is_likely]
        if proven:
            return replace(verdict, state=State.ACTIVE, path=_PATHS[proven[0]], reason=_text(job, ranks))
    for job, ranks in ranks_of:
        if any(rank.path.word in _PATHS for rank in ranks):
            return replace(verdict, reason=joined_sentences(_text(job, ranks), "run as root to confirm"))
    return verdict


def _nccl_ranks(
    processes: Maybe[tuple[LiveProcess, ...]], jobs: tuple[LiveJob, ...]
) -> Iterator[tuple[LiveJob, list[LiveProcess]]]:
    """Yield NCCL's jobs with their ranks on this node."""
    seen = () if isinstance(processes, Unknown) else processes
    for job in jobs:
        ranks = [process for process in seen if process.job == job.id and process.role is Role.NCCL]
        if ranks:
            yield job, ranks


def _text(job: LiveJob, ranks: list[LiveProcess]) -> str:
    return f"{job.name}: {path_summary(ranks)}"


def examine_with_jobs(
    host: Host, node: Node | None = None, before: Examination | None = None, sample: LiveSample | None = None
) -> Examination:
    """Examine the node (see `examine`) with its jobs and their logs; without a `sample`, read the jobs."""
    examination = examine(host, node, before)
    if sample is None:
        processes = ProcessReader().read(host, examination.node, examination.reading).processes
        jobs = group(processes, ())
    else:
        processes, jobs = sample.processes, sample.jobs
    return replace(
        examination,
        verdict=with_jobs(examination.verdict, processes, jobs),
        job_logs=read_job_logs(host, processes, jobs),
    )
