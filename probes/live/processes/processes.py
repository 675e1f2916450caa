"""Processes with RDMA resources or a GPU, each with what it has on which NIC and the path of its data."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields
from typing import TypeVar

from probes.base.frozen import frozen
from probes.base.latest import Latest
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.gpudirect_probe import BUFINFO, AttachedDevices, read_attached
from probes.facts.jobs.processes import MAX_PROCESSES, Process
from probes.facts.node import Node
from probes.host.protocol import Host
from probes.host.rdma_resources import MemoryRegion, RdmaResources
from probes.host.usage import ProcessUsage, Stat, parse_stat
from probes.live.model.paced_source import PacedSource, Question, read_together
from probes.live.model.sample import LiveProcess
from probes.live.processes.gdr_path import NodeEvidence
from probes.live.processes.jobs import JobIds, JobNames
from probes.live.processes.moved_bytes import TransferReader, users_of_nics
from probes.live.processes.node_evidence import (
    GpuUsers,
    current_evidence,
    dmabuf_candidates,
    gpu_users,
    has_devices,
    has_gpu,
    lasting_evidence,
    limits_of,
    peermem_regions,
    unread_devices,
)
from probes.live.processes.ownership import Ownership, RdmaUse, ResourceRound, read_round
from probes.live.processes.tracked_process import (
    NO_USE,
    Answers,
    Membership,
    ProcessCache,
    TrackedProcess,
    WatchedEngine,
)
from probes.queries.jobs import is_watcher
from probes.snapshot.rates import Reading

# Clients in the kernel that share NICs with jobs: Lustre, NFS over RDMA, NVMe over Fabrics.
#
# They have no process. Those that use rdma_cm (core/cma.c, rdma_create_qp) own queue pairs in its name, so
# their own names are those of the protection domains on the device (rdma-resource(8)).

# Names of modules (KBUILD_MODNAME) -> what users call them.
_NAMES = {
    "beegfs": "BeeGFS",
    "cifs": "SMB",
    "ib_iser": "iSER",
    "ib_isert": "iSER target",
    "ib_srp": "SRP",
    "ib_srpt": "SRP target",
    "ko2iblnd": "Lustre",
    "ksmbd": "SMB server",
    "nvme_rdma": "NVMe-oF",
    "nvmet_rdma": "NVMe-oF target",
    "rpcrdma": "NFS",
    "smbdirect": "SMB",
}
_CM = "rdma_cm"
# srp_add_one, srpt_add_one: a domain on each device, even without targets.
_AT_LOAD = {"ib_srp", "ib_srpt"}
_MOST_NAMED = 3


def kernel_clients(resources: RdmaResources) -> Mapping[str, tuple[str, ...]]:
    """Return the kernel's clients with connected queue pairs, by device: {"mlx5_0": ("Lustre",)}."""
    owners: dict[str, set[str]] = {}
    for pair in resources.queue_pairs:
        if pair.kernel_name and pair.is_connected:
            owners.setdefault(pair.device, set()).add(pair.kernel_name)
    if not owners:
        return {}
    domains: dict[str, set[str]] = {}
    for domain in resources.domains:
        domains.setdefault(domain.device, set()).add(domain.kernel_name)
    return {device: _named(names, domains.get(device, set())) for device, names in sorted(owners.items())}


def _named(owners: set[str], domains: set[str]) -> tuple[str, ...]:
    names = {name.replace("-", "_") for name in domains} & _NAMES.keys() if _CM in owners else set()
    names = names - _AT_LOAD or names
    known = sorted({_NAMES[name] for name in names | owners & _NAMES.keys()})
    others = owners - _NAMES.keys() - ({_CM} if names else set())
    return (*known, *sorted(f"kernel ({printable(name, 40)})" for name in others))[:_MOST_NAMED]


_T = TypeVar("_T")

# Threads are named when NCCL connects; user, memory and CPUs of a process hardly ever change.
_THREADS_SECONDS = 5.0
_USAGE_SECONDS = 10.0
_DMABUF_SECONDS = 10.0  # the kernel locks each buffer for a moment while it lists them
# At most between two readings of /proc/PID/stat, however slow they are: an event needs two samples, which
# must not be two looks at one reading.
_STATES_SECONDS = 1.0
_CHANGING_SECONDS = 5.0  # from opening a device to connected queue pairs, or from a signal to the end
_NO_RDMA = Unknown(Reason.NOT_RECORDED, "/proc/PID/status", "read only if the process has RDMA resources")
_NOT_YET = "not read yet"
_NO_GPU = Unknown(Reason.NOT_THERE, "NVML", "it uses no GPU")
_NO_REGIONS = Unknown(Reason.NOT_RECORDED, BUFINFO, "read only if processes have memory regions and a GPU")


@frozen
class ProcessSnapshot:
    """The processes at one moment, and what could not be seen."""

    processes: Maybe[tuple[LiveProcess, ...]]
    limits: tuple[str, ...] = ()
    missing: str = ""  # why some processes may not be listed
    kernel_clients: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by device


class ProcessReader:
    """Read the processes; `clock` measures slow sources, `cpu_clock` what reading /proc costs."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._clocks = clock, cpu_clock
        self._ids = JobIds()
        self._reader: _HostReader | None = None
        self._now = 0.0

    def questions(self, host: Host, node: Node, reading: Reading) -> tuple[Question, Question]:
        """Return what to ask before `read`."""
        reader = self._reader
        # Forget everything for another host, which may be this one while it is recorded: that has to be asked
        # everything. A recording may go back.
        if reader is None or host is not reader.host or reading.at < self._now:
            reader = self._reader = _HostReader(host, self._ids, *self._clocks)
        self._now = reading.at
        return reader.questions(node, reading)

    def read(self, node: Node, reading: Reading) -> ProcessSnapshot:
        """Return the processes now."""
        assert self._reader is not None, "ask first"
        return self._reader.read(node, reading)


class _HostReader:
    def __init__(
        self, host: Host, ids: JobIds, clock: Callable[[], float], cpu_clock: Callable[[], float]
    ) -> None:
        self.host = host
        self._ids = ids
        self._own = known(host.link("/proc/self"), "")
        self._resources: PacedSource[ResourceRound] = PacedSource("RDMA resources", clock=clock)
        # /proc does not wait for devices: on a busy node, most of the time is waiting for a CPU.
        self._stats: PacedSource[Mapping[int, Maybe[Stat]]] = PacedSource(
            "process states", 0.0, clock=cpu_clock, longest=_STATES_SECONDS
        )
        self._threads: PacedSource[Mapping[int, Maybe[tuple[str, ...]]]] = PacedSource(
            "thread names", _THREADS_SECONDS, clock=clock
        )
        self._usage: PacedSource[Mapping[int, Maybe[ProcessUsage]]] = PacedSource(
            "process usage", _USAGE_SECONDS, clock=clock
        )
        self._transfers = TransferReader(clock)
        self._nic_users: Latest[Mapping[str, frozenset[int]]] = Latest()
        self._of_node: Latest[tuple[dict[str, Maybe[int]], frozenset[str]]] = Latest()
        self._attached: PacedSource[AttachedDevices] = PacedSource("DMA-BUFs", _DMABUF_SECONDS, clock=clock)
        self._usable_gpus: Latest[frozenset[str]] = Latest()  # BDFs
        self._users = GpuUsers({}, False)  # at the newest reading
        self._regions: tuple[MemoryRegion, ...] | None = None
        self._regions_at = 0.0  # when they were last seen to change
        self._candidates: Latest[Mapping[int, frozenset[str]]] = Latest()
        self._cache = ProcessCache(clock)
        self._names = JobNames()
        self._tracked: dict[int, TrackedProcess] = {}  # by pid
        self._lasting: Latest[NodeEvidence] = Latest()
        self._evidence: Latest[NodeEvidence] = Latest(keeps_equal=True)
        self._clients: Latest[Mapping[str, tuple[str, ...]]] = Latest(keeps_equal=True)
        self._shown: Latest[tuple[LiveProcess, ...]] = Latest()  # the same tuple while none has changed
        self._signals: object = None
        self._changed_at = -_CHANGING_SECONDS

    def questions(self, node: Node, reading: Reading) -> tuple[Question, Question]:
        """Return what to ask before `read`: RDMA resources, and states of processes with some or a GPU."""
        users = self._users = gpu_users(node, reading, self._usable_gpus)
        host, last = self.host, known(self._resources.answer, None)
        newest: list[Maybe[ResourceRound]] = []  # not taken as the answer yet

        def read_resources() -> Maybe[ResourceRound]:
            newest.append(read_round(host, last))
            return newest[0]

        def read_stats() -> dict[int, Maybe[Stat]]:
            found = newest[0] if newest else self._resources.answer
            pids = self._pids(found, users)[:MAX_PROCESSES]
            return {pid: map_known(host.read(f"/proc/{pid}/stat"), parse_stat) for pid in pids}

        is_changing = self._is_changing(reading, users)
        return Question(self._resources, read_resources, is_changing), Question(self._stats, read_stats)

    def read(self, node: Node, reading: Reading) -> ProcessSnapshot:
        host, now = self.host, reading.at
        users, found = self._users, self._resources.answer
        unlisted = found if isinstance(found, Unknown) and has_devices(node) else None
        unread = unlisted if unlisted is not None else unread_devices(node, reading, found)
        rdma = ResourceRound(Ownership()) if isinstance(found, Unknown) else found
        pids = self._pids(found, users)
        left_out, pids = len(pids) - MAX_PROCESSES, pids[:MAX_PROCESSES]
        self._track(now, pids)
        asked = tuple(self._tracked)
        is_new = any(tracked.is_new for tracked in self._tracked.values())
        if asked:
            read_together(
                host,
                now,
                Question(self._threads, lambda: host.thread_names(asked), is_new),
                Question(self._usage, lambda: host.process_usage(asked), is_new),
            )
        now_there = self._live(node, reading, users, rdma, unlisted)
        processes = self._shown.get(lambda: now_there, objects=now_there)
        sources = (self._resources, self._stats, self._threads, self._usage)
        elsewhere = sum(pid not in self._tracked and str(pid) != self._own for pid in users.gpus)
        limits, missing = limits_of(
            processes,
            node,
            found if has_devices(node) else rdma,
            reading,
            left_out,
            elsewhere if left_out <= 0 else 0,
            self._cache.unread,
            [source.name for source in sources if source.is_late],
        )
        if unread is not None and not processes:
            return ProcessSnapshot(unread, limits, missing)
        clients = self._clients.get(lambda: kernel_clients(rdma.resources), objects=(rdma.resources,))
        return ProcessSnapshot(processes, limits, missing, clients)

    def _pids(self, found: Maybe[ResourceRound], users: GpuUsers) -> list[int]:
        """Return the processes to show, but not gdrtop: those with queue pairs, then those with a GPU."""
        uses = {} if isinstance(found, Unknown) else found.ownership.uses
        pids = sorted(
            {*uses, *users.gpus}, key=lambda pid: (not (pid in uses and uses[pid].queue_pairs), pid)
        )
        return [pid for pid in pids if str(pid) != self._own]

    def _is_changing(self, reading: Reading, users: GpuUsers) -> bool:
        """Return whether processes come or go: NVML lists others, or RDMA devices were opened or closed.

        Each open uverbs device holds ib_uverbs (fs/char_dev.c, chrdev_open), so its reference count shows it.
        """
        now = reading.module_refcnts.get("ib_uverbs"), frozenset(users.gpus)
        if self._signals is not None and now != self._signals:
            self._changed_at = reading.at
        self._signals = now
        return 0 <= reading.at - self._changed_at < _CHANGING_SECONDS

    def _track(self, now: float, pids: list[int]) -> None:
        """Take the states and start times, and forget the processes that have ended."""
        tracked = self._tracked
        stats = known(self._stats.answer, {})
        for pid in set(tracked) - set(pids):
            del tracked[pid]
        for pid in pids:
            stat = stats.get(pid)
            before = tracked.get(pid)
            if isinstance(stat, Unknown) and stat.reason is Reason.NOT_THERE:
                tracked.pop(pid, None)
            elif before is None or (
                isinstance(stat, Stat) and before.stat and before.stat.started != stat.started
            ):
                tracked[pid] = TrackedProcess(pid, now, stat if isinstance(stat, Stat) else None, now)
            elif isinstance(stat, Stat):
                before.update(stat, _time(self._stats.asked_at, now))
        self._cache.update(
            self.host, (process.key for process in tracked.values() if process.stat is not None)
        )

    def _live(
        self, node: Node, reading: Reading, users: GpuUsers, rdma: ResourceRound, unlisted: Unknown | None
    ) -> tuple[LiveProcess, ...]:
        """Return each process with its job and path; `unlisted`: why RDMA resources are unknown."""
        seen = self._seen(users, rdma, unlisted)
        jobs = self._ids.update(
            (tracked.pid, answers.process, tracked.rank, tracked.parent) for tracked, answers in seen
        )
        self._names.update(self.host, (answers.process.job for _, answers in seen))
        evidence = self._current_evidence(node, reading, rdma, seen, jobs)
        ranks = Counter((jobs[tracked.pid], tracked.rank) for tracked, _ in seen)
        engines = self._watched(node, reading, rdma, seen)
        processes = []
        for tracked, answers in seen:
            job = jobs[tracked.pid]
            membership = Membership(job, self._names.name(answers.process.job), ranks[job, tracked.rank] > 1)
            watched = engines.get(tracked.pid)
            processes.append(tracked.live(answers, membership, evidence, reading.at, watched))
        return tuple(processes)

    def _watched(
        self,
        node: Node,
        reading: Reading,
        rdma: ResourceRound,
        seen: Iterable[tuple[TrackedProcess, Answers]],
    ) -> dict[int, WatchedEngine]:
        """Return what each inference engine has moved; nothing is read without one."""
        found = (tracked.engine(answers) for tracked, answers in seen)
        engines = [engine for engine in found if engine is not None]
        if not engines:
            self._transfers.forget()
            return {}
        devices = rdma.users.devices
        users = self._nic_users.get(lambda: users_of_nics(devices), objects=(devices,))
        moved = self._transfers.read(self.host, reading, engines, users)
        links, infiniband = self._of_node.get(lambda: _links(node), objects=(node,))
        return {
            engine.pid: WatchedEngine(
                moved=moved.get(engine.pid),
                nvlinks=_fewest([links[gpu] for gpu in engine.gpus if gpu in links]),
                is_infiniband=not infiniband.isdisjoint(engine.nics),
            )
            for engine in engines
        }

    def _seen(
        self, users: GpuUsers, rdma: ResourceRound, unlisted: Unknown | None
    ) -> list[tuple[TrackedProcess, Answers]]:
        """Return the answers about each process that is not gdrtop's own and no monitor."""
        seen = []
        for pid, tracked in sorted(self._tracked.items()):
            facts = self._cache.get(tracked.key)
            process = _unread(pid, facts) if isinstance(facts, Unknown) else facts
            if process.is_ours or is_watcher(process):
                continue
            use: Maybe[RdmaUse]
            if pid in rdma.ownership.uses:
                use = rdma.ownership.uses[pid]
            elif unlisted is not None:
                use = unlisted
            elif tracked.first_seen > _time(self._resources.asked_at, tracked.first_seen):
                use = Unknown(Reason.TIMED_OUT, "RDMA resources", _NOT_YET)
            else:
                use = NO_USE
            answers = Answers(
                process=tracked.with_usage(process, _answer(self._usage, tracked)),
                threads=_answer(self._threads, tracked),
                use=use,
                pinned=rdma.pinned.get(pid, _NO_RDMA),
                is_settled=pid not in rdma.unsettled,
                has_gpu=has_gpu(pid, facts, users),
                gpus=users.gpus.get(pid, ()),
            )
            seen.append((tracked, answers))
        return seen

    def _current_evidence(
        self,
        node: Node,
        reading: Reading,
        rdma: ResourceRound,
        seen: Iterable[tuple[TrackedProcess, Answers]],
        jobs: Mapping[int, str],
    ) -> NodeEvidence:
        """Return the evidence, the same object as before if nothing changed.

        The number of regions through nvidia-peermem is renewed with the list of regions, or when it passes a
        limit of the judgment.
        """
        with_gpu = {tracked.pid: answers.has_gpu for tracked, answers in seen}
        candidates = self._candidates.get(lambda: dmabuf_candidates(rdma), objects=(rdma,))
        with_regions = [
            pid
            for pid, use in rdma.ownership.uses.items()
            if pid in self._tracked and (use.own.total or use.inherited.total)
        ]
        able = [pid for pid in with_regions if with_gpu.get(pid, True) is not False]
        attached = self._read_attached(reading.at, rdma, able)
        asked_at = self._attached.asked_at
        is_newer = asked_at is not None and asked_at >= self._regions_at
        has_no_dmabuf = is_newer and not isinstance(attached, Unknown) and attached.are_none
        regions = peermem_regions(reading.peermem)
        before = self._evidence.value
        users = 0 if before is None else len(before.peermem_candidates)
        in_use = regions if isinstance(regions, Unknown) else (regions > 0, regions >= users)
        lasting = self._lasting.get(lambda: lasting_evidence(node), objects=(node,))
        return self._evidence.get(
            lambda: current_evidence(
                node, lasting, reading, rdma, with_gpu, jobs, attached, has_no_dmabuf, candidates
            ),
            objects=(node, rdma),
            values=(in_use, with_gpu, jobs, attached, has_no_dmabuf),
        )

    def _read_attached(self, now: float, rdma: ResourceRound, pids: list[int]) -> Maybe[AttachedDevices]:
        """Return the functions that are attached to DMA-BUFs; asked only while processes may use some.

        An answer older than a process says nothing about it.
        """
        regions = rdma.resources.regions
        if regions is not self._regions and regions != self._regions:
            self._regions, self._regions_at = regions, now
        if not pids:
            return _NO_REGIONS
        source, newest = self._attached, max(self._tracked[pid].first_seen for pid in pids)
        is_older = source.asked_at is None or source.asked_at < newest
        source.read(self.host, now, lambda: read_attached(self.host), is_early=is_older)
        if isinstance(source.answer, Unknown) or _time(source.asked_at, now) >= newest:
            return source.answer
        return Unknown(Reason.NOT_RECORDED, BUFINFO, "read before the process started")


def _links(node: Node) -> tuple[dict[str, Maybe[int]], frozenset[str]]:
    """Return the active NVLinks of each GPU, and the RDMA devices with a port of InfiniBand."""
    links = {gpu.bdf: gpu.nvlinks for gpu in node.known_gpus}
    ports = ((device.name, port) for device in node.rdma_devices for port in device.ports)
    return links, frozenset(name for name, port in ports if port.link_layer == "InfiniBand")


def _fewest(links: Sequence[Maybe[int]]) -> Maybe[int]:
    unread = next((each for each in links if isinstance(each, Unknown)), None)
    return min((known(each, 0) for each in links), default=_NO_GPU) if unread is None else unread


def _time(at: float | None, otherwise: float) -> float:
    return otherwise if at is None else at


def _answer(source: PacedSource[Mapping[int, Maybe[_T]]], tracked: TrackedProcess) -> Maybe[_T]:
    """Return a source's answer for a process, unless it is older than the process."""
    if isinstance(source.answer, Unknown):
        return source.answer
    is_older = source.asked_at is None or source.asked_at < tracked.first_seen
    answer = None if is_older else source.answer.get(tracked.pid)
    return Unknown(Reason.TIMED_OUT, source.name, _NOT_YET) if answer is None else answer


def _unread(pid: int, why: Unknown) -> Process:
    values = {field.name: why for field in fields(Process) if field.name not in ("pid", "is_ours", "job")}
    return Process(pid=pid, **values)  # type: ignore[arg-type]
