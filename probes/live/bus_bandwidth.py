"""Bus bandwidth of each rank from the files of NCCL's inspector, for jobs that write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from probes.base.latest import Latest
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.jobs.processes import Process
from probes.facts.node import Node
from probes.host.collectives import METRICS_SUFFIX, CollectiveSpeed, newest
from probes.host.protocol import Host
from probes.live.model.paced_source import PacedSource
from probes.live.model.sample import LiveJob, LiveProcess, Role, SlowestRank
from probes.live.processes.job_logs import own_pid

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
            facts = node.gpus.gpus if isinstance(node.gpus, GpuFacts) else ()
            uuids = {gpu.bdf: gpu.uuid for gpu in facts if not isinstance(gpu.uuid, Unknown)}
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
                key = (
                    speed.nodes or 0,
                    speed.ranks or 0,
                    speed.communicator,
                    speed.sequence,
                    speed.collective,
                )
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
    return [process for process in processes if _writes_files(process.process)], hidden


def _writes_files(process: Process) -> bool:
    values = known(process.environment, {})
    if values.get("NCCL_INSPECTOR_ENABLE", "1").strip() == "0":
        return False
    return any(values.get(name) for name in _SWITCHES)


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
