"""What the node's jobs do now, as part of its examination: whether they use GPUDirect RDMA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from probes.base.unknown import Maybe, Unknown
from probes.facts.gpudirect import GdrPath
from probes.facts.node import Node
from probes.host.probe_thread import ask_here
from probes.host.protocol import Host
from probes.live.live_sampler import LiveSampler
from probes.live.model.sample import LiveJob, LiveProcess, LiveSample, PathWord, Role
from probes.live.processes.job_logs import read_job_logs
from probes.live.processes.jobs import path_summary
from probes.snapshot.examination import Examination, examine
from probes.snapshot.gdr_use import joined_sentences
from probes.snapshot.verdict import State, Usability

_PATHS = {PathWord.DMABUF: GdrPath.DMABUF, PathWord.PEERMEM: GdrPath.PEERMEM}


def with_jobs(
    usability: Usability, processes: Maybe[tuple[LiveProcess, ...]], jobs: tuple[LiveJob, ...]
) -> Usability:
    """Return whether a usable path is in use, as NCCL's ranks show it.

    A rank that is proven to use GPUDirect RDMA makes it ACTIVE; one that likely does, "READY, likely in use".
    Ranks that do not use it are conditions, which the checks report.
    """
    ranks_of = list(_nccl_ranks(processes, jobs))
    words = {rank.path.word for _, ranks in ranks_of for rank in ranks}
    if seen := frozenset(path for word, path in _PATHS.items() if word in words):
        usability = replace(usability, seen=seen)
    if usability.state is not State.READY:
        return usability
    for job, ranks in ranks_of:
        proven = [rank.path.word for rank in ranks if rank.path.word in _PATHS and not rank.path.is_likely]
        if proven:
            return replace(usability, state=State.ACTIVE, path=_PATHS[proven[0]], reason=_text(job, ranks))
    for job, ranks in ranks_of:
        if any(rank.path.word in _PATHS for rank in ranks):
            reason = joined_sentences(_text(job, ranks), "run as root to confirm" * usability.hides_use)
            return replace(usability, reason=reason)
    return usability


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
    """Examine the node (see `examine`) with its jobs and their logs; without a `sample`, take one."""
    return examine_and_sample(host, node, before, sample)[0]


def examine_and_sample(
    host: Host,
    node: Node | None = None,
    before: Examination | None = None,
    sample: LiveSample | None = None,
    sampler: LiveSampler | None = None,
) -> tuple[Examination, LiveSample]:
    """Return the same, and the sample of its jobs; `sampler`: takes it, and may have taken earlier ones."""
    examination = examine(host, node, before)
    if sample is None:
        sampler = LiveSampler(settles=False) if sampler is None else sampler
        sample = ask_here(
            host, "running jobs", lambda: sampler.sample(host, examination.node, examination.reading)
        )
    processes, jobs = sample.processes, sample.jobs
    examination = replace(
        examination,
        usability=with_jobs(examination.usability, processes, jobs),
        job_logs=ask_here(host, "NCCL logs of jobs", lambda: read_job_logs(host, processes, jobs)),
        watched=sample.watched,
    )
    return examination, sample
