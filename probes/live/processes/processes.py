"""Processes with RDMA resources or a GPU, each with what it has on which NIC and the path of its data."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import NamedTuple, TypeVar

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.jobs.process_files import Stat, parse_stat
from probes.facts.jobs.processes import MAX_PROCESSES, Process
from probes.facts.node import Node
from probes.host.protocol import Host
from probes.host.usage import ProcessUsage
from probes.live.model.paced_source import PacedSource
from probes.live.model.sample import LiveProcess
from probes.live.processes.gdr_limits import limits_of
from probes.live.processes.gdr_path import NodeEvidence, ProcessEvidence, judge
from probes.live.processes.job_ids import JobIds
from probes.live.processes.job_names import JobNames
from probes.live.processes.node_evidence import (
    GpuUsers,
    evidence_of_node,
    gpu_users,
    has_devices,
    has_gpu,
    is_far,
    node_evidence,
    peermem_regions,
)
from probes.live.processes.ownership import Ownership, RdmaUse, ResourceRound, read_round
from probes.live.processes.process_cache import ProcessCache
from probes.live.processes.roles import role_of
from probes.live.processes.tracked_process import TrackedProcess
from probes.queries.jobs import is_watcher
from probes.snapshot.rates import Reading

_T = TypeVar("_T")

KEPT_SECONDS = 10.0  # a path stays, at most this long, while the regions change in every reading
# Threads are named when NCCL connects; user, memory and CPUs of a process hardly ever change.
_THREADS_SECONDS = 5.0
_USAGE_SECONDS = 10.0
# At most between two readings of /proc/PID/stat, however slow they are: an event needs two samples, which
# must not be two looks at one reading.
_STATES_SECONDS = 1.0
_CHANGING_SECONDS = 5.0  # from opening a device to connected queue pairs, or from a signal to the end
_SHARED_RANK = Unknown(Reason.NOT_THERE, "/proc/PID/environ", "several processes have the same rank")
_NO_RDMA = Unknown(Reason.NOT_RECORDED, "/proc/PID/status", "read only with RDMA resources")
_NO_USE = RdmaUse()
_NOT_YET = "not read yet"


@frozen
class ProcessSnapshot:
    """The processes at one moment, and what could not be seen."""

    processes: Maybe[tuple[LiveProcess, ...]]
    limits: tuple[str, ...] = ()
    missing: str = ""  # why some processes may not be listed


class ProcessReader:
    """Read the processes; facts that do not change are read once per process.

    `clock` measures how long slow sources take, `cpu_clock` what reading /proc costs.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._ids = JobIds()
        self._host: Host | None = None
        self._now = 0.0

    def _reset(self, host: Host) -> None:
        """Forget all answers: another host has others, and one that records must be asked everything."""
        clock = self._clock
        self._host = host
        self._own = known(host.link("/proc/self"), "")
        self._resources: PacedSource[ResourceRound] = PacedSource("RDMA resources", clock=clock)
        # /proc does not wait for devices: on a busy node, most of the time is waiting for a CPU.
        self._stats: PacedSource[Mapping[int, Maybe[Stat]]] = PacedSource(
            "process states", 0.0, clock=self._cpu_clock, longest=_STATES_SECONDS
        )
        self._threads: PacedSource[Mapping[int, Maybe[tuple[str, ...]]]] = PacedSource(
            "thread names", _THREADS_SECONDS, clock=clock
        )
        self._usage: PacedSource[Mapping[int, Maybe[ProcessUsage]]] = PacedSource(
            "process usage", _USAGE_SECONDS, clock=clock
        )
        self._cache = ProcessCache(clock)
        self._names = JobNames()
        self._known: dict[int, TrackedProcess] = {}
        self._evidence: tuple[Node, ResourceRound, object, NodeEvidence] | None = None
        self._signals: object = None
        self._changed_at = -_CHANGING_SECONDS

    def read(self, host: Host, node: Node, reading: Reading) -> ProcessSnapshot:
        """Return the processes now."""
        now = reading.at
        if host is not self._host or now < self._now:  # a recording may go back
            self._reset(host)
        self._now = now
        users = gpu_users(node, reading)
        last = known(self._resources.answer, None)
        found = self._resources.read(
            host, now, lambda: read_round(host, last), is_early=self._is_changing(reading, users)
        )
        unlisted = found if isinstance(found, Unknown) and has_devices(node) else None
        rdma = ResourceRound(Ownership()) if isinstance(found, Unknown) else found
        pids = [pid for pid in _candidates(rdma, users) if str(pid) != self._own]
        left_out, pids = len(pids) - MAX_PROCESSES, pids[:MAX_PROCESSES]
        self._update(host, now, pids)
        asked = tuple(self._known)
        is_new = any(one.is_new for one in self._known.values())
        if asked:
            self._threads.read(host, now, lambda: host.thread_names(asked), is_early=is_new)
            self._usage.read(host, now, lambda: host.process_usage(asked), is_early=is_new)
        seen = self._seen(users, rdma, unlisted)
        jobs = self._ids.update((one.pid, one.process, one.known.rank, one.parent) for one in seen)
        self._names.update(host, (one.process.job for one in seen))
        evidence = self._node_evidence(node, reading, rdma, seen, jobs)
        ranks = Counter((jobs[one.pid], one.known.rank) for one in seen)
        processes = tuple(
            self._live(one, jobs[one.pid], evidence, users, now, ranks[jobs[one.pid], one.known.rank] > 1)
            for one in seen
        )
        limits, missing = limits_of(
            processes,
            node,
            found if has_devices(node) else rdma,
            reading,
            left_out,
            _elsewhere(users, self._known, self._own) if left_out <= 0 else 0,
            self._cache.unread,
            [
                source.name
                for source in (self._resources, self._stats, self._threads, self._usage)
                if source.is_late
            ],
        )
        if unlisted is not None and not processes:
            return ProcessSnapshot(unlisted, limits, missing)
        return ProcessSnapshot(processes, limits, missing)

    def _is_changing(self, reading: Reading, users: GpuUsers) -> bool:
        """Return whether processes come or go: NVML lists others, or RDMA devices were opened or closed.

        Each open uverbs device holds ib_uverbs (fs/char_dev.c, chrdev_open), so its reference count shows it.
        """
        now = reading.module_refcnts.get("ib_uverbs"), frozenset(users.gpus)
        if self._signals is not None and now != self._signals:
            self._changed_at = reading.at
        self._signals = now
        return 0 <= reading.at - self._changed_at < _CHANGING_SECONDS

    def _update(self, host: Host, now: float, pids: list[int]) -> None:
        """Read states and start times, and forget the processes that have ended."""
        self._stats.read(host, now, lambda: _read_stats(host, pids))
        stats = known(self._stats.answer, {})
        for pid in set(self._known) - set(pids):
            del self._known[pid]
        for pid in pids:
            stat = stats.get(pid)
            before = self._known.get(pid)
            if isinstance(stat, Unknown) and stat.reason is Reason.NOT_THERE:
                self._known.pop(pid, None)
            elif before is None or (
                isinstance(stat, Stat) and before.stat and before.stat.started != stat.started
            ):
                self._known[pid] = TrackedProcess(pid, now, stat if isinstance(stat, Stat) else None, now)
            elif isinstance(stat, Stat):
                before.update(stat, _time(self._stats.asked_at, now))
        self._cache.update(host, (one.key for one in self._known.values() if one.stat is not None))

    def _seen(self, users: GpuUsers, rdma: ResourceRound, unlisted: Unknown | None) -> list[_Seen]:
        """Return what is known of each process that is not gdrtop's own and no monitor."""
        seen = []
        for pid, one in sorted(self._known.items()):
            facts = self._cache.get(one.key)
            process = _unread(pid, facts) if isinstance(facts, Unknown) else facts
            if process.is_ours or is_watcher(process):
                continue
            use: Maybe[RdmaUse]
            if pid in rdma.ownership.uses:
                use = rdma.ownership.uses[pid]
            elif unlisted is not None:
                use = unlisted
            elif one.first_seen > _time(self._resources.asked_at, one.first_seen):
                use = Unknown(Reason.TIMED_OUT, "RDMA resources", _NOT_YET)
            else:
                use = _NO_USE
            seen.append(
                _Seen(
                    pid=pid,
                    known=one,
                    process=one.shown(process, _answer(self._usage, one)),
                    threads=_answer(self._threads, one),
                    use=use,
                    pinned=rdma.pinned.get(pid, _NO_RDMA),
                    is_settled=pid not in rdma.unsettled,
                    has_gpu=has_gpu(pid, facts, users),
                )
            )
        return seen

    def _node_evidence(
        self,
        node: Node,
        reading: Reading,
        rdma: ResourceRound,
        seen: Iterable[_Seen],
        jobs: Mapping[int, str],
    ) -> NodeEvidence:
        """Return the evidence, the same object as before if nothing changed.

        The number of regions through nvidia-peermem is renewed with the list of regions, or when it passes a
        limit of the judgment.
        """
        with_gpu = {one.pid: one.has_gpu for one in seen}
        started = [_started(one.process) for one in seen if one.has_gpu is not False]
        regions = peermem_regions(reading.peermem)
        before = self._evidence
        users = 0 if before is None else len(before[3].peermem_candidates)
        in_use = regions if isinstance(regions, Unknown) else (regions > 0, regions >= users)
        made_of = (in_use, with_gpu, jobs, started)
        if before is not None and before[0] is node and before[1] is rdma and before[2] == made_of:
            return before[3]
        of_node = evidence_of_node(node) if before is None or before[0] is not node else before[3]
        evidence = node_evidence(node, of_node, reading, rdma, with_gpu, jobs, started)
        if before is not None and before[3] == evidence:
            evidence = before[3]
        self._evidence = node, rdma, made_of, evidence
        return evidence

    def _live(
        self, one: _Seen, job: str, node: NodeEvidence, users: GpuUsers, now: float, shares_rank: bool
    ) -> LiveProcess:
        """Return the process, the same object as before if nothing changed.

        `shares_rank`: another process of the job has the same rank, which is then that of their parent.
        """
        kept = one.known
        name = self._names.name(one.process.job)
        gpus = users.gpus.get(one.pid, ())
        state = kept.stat.state if kept.stat else one.process.state
        made_of = (*one.facts, job, name, node, gpus, shares_rank)
        if one.is_settled and kept.live is not None and made_of == kept.made_of:
            kept.judged_at = now
            if (state, kept.cpu_percent) != (kept.live.state, kept.live.cpu_percent):
                kept.live = kept.live.moved(state, kept.cpu_percent)
            return kept.live
        use = _NO_USE if isinstance(one.use, Unknown) else one.use
        path, evidence = kept.path, self._evidence_of(one, node, gpus, use)
        if one.is_settled or path is None or not 0 <= now - kept.judged_at <= KEPT_SECONDS:
            judged = kept.judged
            if judged is None or judged[0] is not evidence or judged[1] is not node:
                judged = kept.judged = evidence, node, judge(evidence, node)
            path = judged[2]
            if one.is_settled:
                kept.path, kept.judged_at = path, now
        process = one.process if name == one.process.job else replace(one.process, job=name)
        rank, world_size = kept.rank, kept.world_size
        if shares_rank and not isinstance(rank, Unknown):
            rank = world_size = _SHARED_RANK
        live = LiveProcess(
            pid=one.pid,
            process=process,
            role=evidence.role,
            job=job,
            rank=rank,
            world_size=world_size,
            gpus=gpus,
            nics=use.nics,
            registered_bytes=use.own.bytes + use.inherited.bytes,
            pinned_bytes=one.pinned,
            threads=one.threads,
            state=state,
            cpu_percent=kept.cpu_percent,
            path=path,
            is_listed=not isinstance(one.use, Unknown),
        )
        if kept.live is None or kept.live != live:
            kept.live = live
        kept.made_of = made_of
        return kept.live

    def _evidence_of(
        self, one: _Seen, node: NodeEvidence, gpus: tuple[str, ...], use: RdmaUse
    ) -> ProcessEvidence:
        """Return what is known of a process, the same object as before if nothing changed."""
        kept, made_of = one.known, (*one.facts, gpus, node.numa_nodes)
        if kept.evidence is None or made_of != kept.evidence[0]:
            kept.evidence = (
                made_of,
                ProcessEvidence(
                    one.pid,
                    role_of(one.process, one.threads, bool(use.nics)),
                    one.use,
                    one.pinned,
                    one.threads,
                    one.has_gpu,
                    one.is_settled,
                    frozenset(library.name for library in known(one.process.libraries, ())),
                    is_far(node.numa_nodes, gpus, use),
                ),
            )
        return kept.evidence[1]


class _Seen(NamedTuple):
    """The answers about one process in one sample."""

    pid: int
    known: TrackedProcess
    process: Process
    threads: Maybe[tuple[str, ...]]
    use: Maybe[RdmaUse]
    pinned: Maybe[int]
    is_settled: bool
    has_gpu: Maybe[bool]

    @property
    def facts(self) -> tuple[object, ...]:
        """What the source answered, to compare with the sample before."""
        return self.process, self.threads, self.use, self.pinned, self.is_settled, self.has_gpu

    @property
    def parent(self) -> int:
        """The parent's pid; 0 if it is unknown."""
        return self.known.stat.parent if self.known.stat else 0


def _time(at: float | None, otherwise: float) -> float:
    return otherwise if at is None else at


def _candidates(rdma: ResourceRound, users: GpuUsers) -> list[int]:
    """Return the pids to show: first those with queue pairs, then those with a GPU."""
    uses = rdma.ownership.uses
    return sorted({*uses, *users.gpus}, key=lambda pid: (not (pid in uses and uses[pid].queue_pairs), pid))


def _elsewhere(users: GpuUsers, tracked: Mapping[int, TrackedProcess], own: str) -> int:
    """Return how many processes NVML lists that /proc does not."""
    return sum(pid not in tracked and str(pid) != own for pid in users.gpus)


def _read_stats(host: Host, pids: Iterable[int]) -> dict[int, Maybe[Stat]]:
    found: dict[int, Maybe[Stat]] = {}
    for pid in pids:
        text = host.read(f"/proc/{pid}/stat")
        found[pid] = text if isinstance(text, Unknown) else parse_stat(text)
    return found


def _answer(source: PacedSource[Mapping[int, Maybe[_T]]], one: TrackedProcess) -> Maybe[_T]:
    """Return a source's answer for a process, unless it is older than the process."""
    if isinstance(source.answer, Unknown):
        return source.answer
    is_older = source.asked_at is None or source.asked_at < one.first_seen
    answer = None if is_older else source.answer.get(one.pid)
    return Unknown(Reason.TIMED_OUT, source.name, _NOT_YET) if answer is None else answer


def _unread(pid: int, why: Unknown) -> Process:
    """Return a process of which nothing has been read."""
    values = {field.name: why for field in fields(Process) if field.name not in ("pid", "is_ours", "job")}
    return Process(pid=pid, **values)  # type: ignore[arg-type]


def _started(process: Process) -> Maybe[float]:
    return process.usage if isinstance(process.usage, Unknown) else process.usage.started_at
