"""Take a live sample of the node each second, with ranks' bus bandwidth; slow sources are read less often."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from probes.base.latest import Latest
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.jobs.processes import Process
from probes.facts.kernel.modules import ModuleFacts
from probes.facts.node import Node
from probes.host.collectives import METRICS_SUFFIX, CollectiveSpeed, newest
from probes.host.protocol import Host, KernelMessage
from probes.live.events.conditions import Conditions
from probes.live.model.paced_source import PacedSource, Question, read_together
from probes.live.model.sample import (
    GpuSample,
    LiveEvent,
    LiveJob,
    LiveProcess,
    LiveSample,
    PortSample,
    Role,
    SlowestRank,
    part,
)
from probes.live.odd_one_out import OddOneOut
from probes.live.ports import PortReader
from probes.live.processes.job_logs import own_pid
from probes.live.processes.jobs import jobs_of
from probes.live.processes.processes import ProcessReader, ProcessSnapshot
from probes.live.ras.findings import RasEvents
from probes.live.silence import Silence
from probes.live.spread import Spread
from probes.snapshot.rates import Reading

if TYPE_CHECKING:
    from probes.live.events.detectors import EventDetector


# Bus bandwidth of each rank from the files of NCCL's inspector, for jobs that write them.

READ_SECONDS = 5.0
STALE_SECONDS = 120.0  # an older collective says nothing about now; metrics are rewritten every 30 s
_SLOW = 0.9  # of the median of the other ranks
_SOURCE = "NCCL inspector"
_MAX_DIRECTORY = 256
_SWITCHES = ("NCCL_INSPECTOR_ENABLE", "NCCL_INSPECTOR_DUMP_DIR", "NCCL_PROFILER_PLUGIN")

Speeds = tuple[CollectiveSpeed, ...]


class BusBandwidth:
    """The newest collectives of each rank; it opens no file of a job without the inspector's variables."""

    def __init__(self) -> None:
        self._host: Host | None = None
        self._now = 0.0
        self._asked: Latest[tuple[list[LiveProcess], dict[int, Unknown]]] = Latest()

    def update(
        self, host: Host, node: Node, processes: Maybe[tuple[LiveProcess, ...]], now: float
    ) -> Maybe[tuple[LiveProcess, ...]]:
        """Return the processes with their bus bandwidth. `now`: seconds of the sample's clock."""
        if host is not self._host or now < self._now:  # a recording may go back
            self._host = host
            self._source: PacedSource[Mapping[int, Maybe[Speeds]]] = PacedSource(_SOURCE, READ_SECONDS)
            self._files: dict[tuple[int, str], str] = {}
            self._read: dict[int, Speeds] = {}
            self._shown: dict[int, tuple[LiveProcess, LiveProcess]] = {}
        self._now = now
        if isinstance(processes, Unknown):
            return processes
        watched, hidden = self._asked.get(lambda: _asked(processes), objects=(processes,))
        if not watched and not hidden:
            return processes
        speeds: dict[int, Maybe[Speeds]] = dict(hidden)
        if watched:
            uuids = {gpu.bdf: gpu.uuid for gpu in node.known_gpus if not isinstance(gpu.uuid, Unknown)}
            found = self._source.read(
                host, now, lambda: {process.pid: self._speeds(host, process, uuids) for process in watched}
            )
            speeds.update(known(found, {}))
        taken_at = host.wall_clock()
        pids = {*hidden, *(process.pid for process in watched)}
        return tuple(
            self._with_speeds(process, speeds.get(process.pid), taken_at) if process.pid in pids else process
            for process in processes
        )

    def with_slowest(self, jobs: Sequence[LiveJob], taken_at: float) -> tuple[LiveJob, ...]:
        """Return the jobs with their slowest ranks. `taken_at`: seconds since 1970."""
        speeds = {} if self._host is None else known(self._source.answer, {})
        recent = {
            pid: tuple(speed for speed in found if _is_recent(speed, taken_at))
            for pid, found in speeds.items()
            if not isinstance(found, Unknown)
        }
        found = [(job, slowest({pid: recent.get(pid, ()) for pid in job.pids})) for job in jobs]
        return tuple(job if slow is None else replace(job, slowest=slow) for job, slow in found)

    # Files

    def _speeds(self, host: Host, process: LiveProcess, uuids: Mapping[str, str]) -> Maybe[Speeds]:
        """Return the collectives in the log of a process, or the averages in its GPU's metrics file."""
        directory = directory_of(process.process)
        key = (process.pid, directory)
        if key not in self._files:
            found = _file_in(host, directory, process, uuids)
            if isinstance(found, Unknown):
                return found
            if len(self._files) > 2 * _MAX_DIRECTORY:
                self._files.clear()
            self._files[key] = found
        path = self._files[key]
        answer = host.collectives(path, process.process.uid)
        if isinstance(answer, Unknown):
            if answer.reason is Reason.MALFORMED and process.pid in self._read:
                return self._read[process.pid]  # the file is being rewritten
            if answer.reason is Reason.NOT_THERE:
                del self._files[key]
            return answer
        self._read[process.pid] = answer
        return answer

    def _with_speeds(
        self, process: LiveProcess, speeds: Maybe[Speeds] | None, taken_at: float
    ) -> LiveProcess:
        gbps: Maybe[float]
        recent: Speeds = ()
        if speeds is None:
            gbps = Unknown(Reason.TIMED_OUT, _SOURCE, "not read yet")
        elif isinstance(speeds, Unknown):
            gbps = speeds
        else:
            recent = newest(speed for speed in speeds if speed.at is None or _is_recent(speed, taken_at))
            why = "no collective in the last 2 minutes" if speeds else "no collective reported yet"
            gbps = recent[0].bus_gbps if recent else Unknown(Reason.NOT_THERE, _SOURCE, why)
        changed = replace(process, bus_gbps=gbps, collectives=recent)
        before, shown = self._shown.get(process.pid, (None, None))
        if before is process and shown == changed:
            assert shown is not None
            return shown
        if len(self._shown) > 2 * _MAX_DIRECTORY:
            self._shown.clear()
        self._shown[process.pid] = process, changed
        return changed


def slowest(speeds: Mapping[int, Speeds]) -> SlowestRank | None:
    """Return the process with the lowest bus bandwidth in the newest collective that several have written.

    The communicator of the most nodes and ranks counts. None: no process is below 90 % of the others.
    """
    groups: dict[tuple[int, int, str, int, str], dict[int, CollectiveSpeed]] = {}
    for pid, found in speeds.items():
        for speed in found:
            if speed.sequence is not None:
                size = speed.nodes or 0, speed.ranks or 0
                key = (*size, speed.communicator, speed.sequence, speed.collective)
                groups.setdefault(key, {}).setdefault(pid, speed)
    most = max(map(len, groups.values()), default=0)
    if most < 2:
        return None
    from statistics import median  # imports decimal and fractions

    # Ranks write at different times: the newest collective may still lack some.
    widest = max(key[:2] for key, group in groups.items() if len(group) > 1)
    members = [(key, group) for key, group in groups.items() if key[:2] == widest and len(group) > 1]
    most = max(len(group) for _, group in members)
    key, group = max(
        ((key, group) for key, group in members if len(group) == most),
        key=lambda pair: (max(speed.at or 0.0 for speed in pair[1].values()), pair[0][3]),
    )
    pid = min(group, key=lambda pid: (group[pid].bus_gbps, pid))
    others = median(speed.bus_gbps for other, speed in group.items() if other != pid)
    if group[pid].bus_gbps >= _SLOW * others:
        return None
    return SlowestRank(pid, group[pid].bus_gbps, others, key[4], key[3], key[2])


def directory_of(process: Process) -> str:
    """Return the directory of the inspector's files, as gdrtop can reach it, in containers too."""
    values = known(process.environment, {})
    job = values.get("SLURM_JOB_ID", "") or "unknown-jobid"
    directory = values.get("NCCL_INSPECTOR_DUMP_DIR", "") or f"nccl-inspector-{job}"
    start = f"/proc/{process.pid}/{'root' if directory.startswith('/') else 'cwd'}"
    return f"{start}/{directory.strip('/')}"


def _is_recent(speed: CollectiveSpeed, taken_at: float) -> bool:
    return speed.at is not None and abs(taken_at - speed.at) <= STALE_SECONDS


def _asked(processes: Iterable[LiveProcess]) -> tuple[list[LiveProcess], dict[int, Unknown]]:
    """Return the processes that write files, and those of which that is unknown."""
    hidden = {
        process.pid: process.process.environment
        for process in processes
        if process.role is Role.NCCL and isinstance(process.process.environment, Unknown)
    }
    writers = []
    for process in processes:
        values = known(process.process.environment, {})
        is_off = values.get("NCCL_INSPECTOR_ENABLE", "1").strip() == "0"
        if not is_off and any(values.get(name) for name in _SWITCHES):
            writers.append(process)
    return writers, hidden


def _file_in(host: Host, directory: str, process: LiveProcess, uuids: Mapping[str, str]) -> Maybe[str]:
    names = host.names(directory)
    if isinstance(names, Unknown):
        return names
    # The pid is the one in the process's own namespace; other nodes may write to the same directory.
    own = known(host.read("/proc/sys/kernel/hostname"), "").partition(".")[0]
    pid = own_pid(host, process.pid)
    logs = [name for name in names if name.endswith(f"-pid{pid}.log")]
    of_host = [name for name in logs if name.partition("-pid")[0].partition(".")[0] == own]
    for choice in (of_host, logs):
        if len(choice) == 1:
            return f"{directory}/{choice[0]}"
    for bdf in process.gpus:
        name = f"nccl_inspector_metrics_{uuids.get(bdf, '')}{METRICS_SUFFIX}"
        if name in names:
            return f"{directory}/{name}"
    detail = f"several files for pid {pid}" if logs else "the inspector has written no file for this rank"
    return Unknown(Reason.NOT_THERE, directory, detail)


_FAILED = Unknown(Reason.IO_ERROR, "gdrtop", "an error in gdrtop")


class LiveSampler:
    """The latest sample of a node; it asks its host only when it is called, from one thread.

    A part that fails leaves the others as they are, and one sentence in the sample's limits.
    """

    def __init__(self, ras: RasEvents | None = None, settles: bool = True) -> None:
        """With `settles`, what is odd has to last; without, one sample decides: there is no second one."""
        self._processes = ProcessReader()
        self._ports = PortReader()
        self._bus = BusBandwidth()
        self._odd, self._spread = OddOneOut(settles), Spread()
        self._silence = Silence()
        self._events: EventDetector | None = None
        if settles:  # a single sample has no events
            from probes.live.events.detectors import EventDetector

            self._events = EventDetector()
        self.ras = RasEvents() if ras is None else ras
        # The states of modules, the names of NICs, and those of GPUs and NICs.
        self._of_node: Latest[tuple[dict[str, str], dict[str, str], dict[str, str]]] = Latest()
        self._gpus_of_jobs: dict[str, tuple[str, ...]] = {}  # by the job's id
        self.latest: LiveSample | None = None

    def sample(self, host: Host, node: Node, reading: Reading) -> LiveSample:
        """Return the sample that belongs to a reading taken just now."""
        limits: list[str] = []
        modules, nics, names = self._of_node.get(
            lambda: (_modules(node), _nic_names(node), _names(node)), objects=(node,)
        )
        # On a busy node the rest takes a while: the sample bears the time of the reading.
        taken_at = host.wall_clock()
        no_ports: tuple[PortSample, ...] = ()
        no_events: list[LiveEvent] = []
        no_jobs: tuple[LiveJob, ...] = ()
        unseen: Maybe[tuple[KernelMessage, ...]] = ()
        nothing: tuple[Question, ...] = ()
        of_ports = part(limits, "the ports", lambda: self._ports.questions(host, node), nothing)
        of_processes = part(
            limits, "the processes", lambda: self._processes.questions(host, node, reading), nothing
        )
        of_pairs = part(limits, "packet numbers", lambda: self._silence.questions(host, node), nothing)
        read_together(host, reading.at, *of_ports, *of_processes, *of_pairs)
        ports = part(limits, "the ports", lambda: self._ports.read(reading), no_ports)
        found = part(
            limits, "the processes", lambda: self._processes.read(node, reading), ProcessSnapshot(_FAILED)
        )
        processes = part(
            limits,
            "NCCL's inspector files",
            lambda: self._bus.update(host, node, found.processes, reading.at),
            found.processes,
        )
        live = reading.gpus
        absent = Unknown(Reason.NOT_THERE, "NVML", "the GPU is not listed")
        gpus = tuple(
            GpuSample(gpu.bdf, gpu.index, live if isinstance(live, Unknown) else live.get(gpu.bdf, absent))
            for gpu in node.known_gpus
        )
        sample = LiveSample(
            at=reading.at,
            taken_at=taken_at,
            nic_names=nics,
            processes=processes,
            jobs=part(limits, "the jobs", lambda: jobs_of(processes, ports), no_jobs),
            ports=ports,
            gpus=gpus,
            peermem=reading.peermem,
            modules=modules,
            missing=found.missing,
            kernel_clients=found.kernel_clients,
            no_ports="" if ports else _no_ports(node),
            no_gpus="" if gpus else _no_gpus(node),
        )
        updates: list[tuple[str, Callable[[LiveSample], tuple[LiveJob, ...]]]] = [
            ("the odd one out", lambda sample: self._odd.update(sample, node)),
            ("the spread of traffic", lambda sample: self._spread.update(sample, node)),
            ("silent jobs", self._silence.update),
            ("the GPUs of jobs", self._with_gpus),
            ("the slowest ranks", lambda sample: self._bus.with_slowest(sample.jobs, host.wall_clock())),
        ]
        for what, update in updates:
            sample = replace(sample, jobs=part(limits, what, partial(update, sample), sample.jobs))
        if self._events is not None:
            unseen = part(limits, "kernel messages", host.kernel_messages, unseen)
        sample = replace(sample, limits=(*found.limits, *limits))
        if self._events is None:
            return part(
                limits, "what lasts", lambda: replace(sample, watched=Conditions().update(sample)), sample
            )
        detector = self._events
        sample = part(limits, "events", lambda: detector.update(sample, unseen, names), sample)
        followed = part(limits, "RAS events", lambda: self.ras.update(host, sample), no_events)
        self.latest = replace(sample, events=(*sample.events, *followed)) if followed else sample
        return self.latest

    def _with_gpus(self, sample: LiveSample) -> tuple[LiveJob, ...]:
        """Return the jobs with their GPUs; one that NVML no longer shows stays with the job that used it."""
        now: dict[str, list[str]] = {job.id: [] for job in sample.jobs}
        for process in known(sample.processes, ()):
            if process.job in now:
                now[process.job].extend(process.gpus)
        taken = {gpu for gpus in now.values() for gpu in gpus}
        for name, gpus in now.items():
            gpus.extend(gpu for gpu in self._gpus_of_jobs.get(name, ()) if gpu not in taken)
        self._gpus_of_jobs = {name: tuple(dict.fromkeys(gpus)) for name, gpus in now.items()}
        return tuple(replace(job, gpus=self._gpus_of_jobs[job.id]) for job in sample.jobs)


def _names(node: Node) -> dict[str, str]:
    return {gpu.bdf: f"GPU {gpu.index}" for gpu in node.known_gpus} | _nic_names(node)


def _nic_names(node: Node) -> dict[str, str]:
    """Return the names of the RDMA devices by BDF; the first one of a function that has several."""
    return {nic.bdf: nic.name for nic in reversed(node.rdma_devices) if not isinstance(nic.bdf, Unknown)}


def _no_ports(node: Node) -> str:
    rdma = node.rdma
    if isinstance(rdma, Unknown):
        is_missing = rdma.reason is Reason.NOT_THERE
        return "RDMA is not loaded on this node." if is_missing else f"RDMA devices are unknown ({rdma})."
    if rdma.devices:
        return "The RDMA ports could not be read."
    if rdma.devices_elsewhere:
        return "The RDMA devices are in another network namespace."
    return "This node has no RDMA device."


def _no_gpus(node: Node) -> str:
    if isinstance(node.gpus, Unknown):
        return f"GPUs are unknown ({node.gpus})."
    others = "" if isinstance(node.pci, Unknown) else node.pci.other_gpus
    return f"No NVIDIA GPU; this node has {others}." if others else "No NVIDIA GPU."


def _modules(node: Node) -> dict[str, str]:
    if not isinstance(node.modules, ModuleFacts):
        return {}
    modules = node.modules.modules.items()
    return {name: module.state.value for name, module in modules if not isinstance(module.state, Unknown)}
