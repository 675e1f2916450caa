"""Some seconds of a job: whether it moves data, and the figures of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.live.model.activity import BUSY_PERCENT, IDLE_PERCENT, SILENT_SECONDS, moves_data
from probes.live.model.sample import LiveJob, LiveProcess, LiveSample
from probes.queries.queue_pair_makers import may_post_by_gpu, unlisted

_IDLE_CPU, _BUSY_CPU = 10.0, 60.0  # percent of one CPU: a waiting rank keeps a proxy thread busy
_LEAST_RANKS = 3  # to say that one differs
NOT_READ = Unknown(Reason.NOT_RECORDED, "sample", "not read")


@frozen
class RankState:
    """One rank on this node, as the last seconds showed it."""

    name: str  # "rank 3", or "pid 41003" where the rank is unknown
    pid: int
    rank: Maybe[int]
    gpus: tuple[str, ...]  # BDFs
    nics: tuple[str, ...]  # with connected queue pairs
    state: Maybe[str]
    cpu_percent: Maybe[float]  # the median
    gpu_percent: Maybe[float]
    power_watts: Maybe[float]
    gbps: Maybe[float]  # the highest rate of its NICs, either direction
    silent_seconds: Maybe[float]  # since its NICs last moved data; unknown: they have not while watched
    queue_pairs: int
    ready: int  # queue pairs in RTS
    node: str = ""  # of a job on several nodes
    gpu_may_post: bool = False  # to queue pairs that the kernel does not list
    unlisted: str = ""  # what its listed queue pairs leave out; "": nothing


@dataclass
class _Series:
    latest: LiveProcess
    cpu: list[float] = field(default_factory=list)
    gpu: list[float] = field(default_factory=list)
    power: list[float] = field(default_factory=list)
    gbps: list[float] = field(default_factory=list)
    moved_at: float | None = None


class HangWatch:
    """The samples of one job."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._ranks: dict[int, _Series] = {}
        self._began: float | None = None
        self._at = 0.0

    @property
    def seconds(self) -> float:
        """For how long the job was watched."""
        return 0.0 if self._began is None else self._at - self._began

    def add(self, sample: LiveSample) -> None:
        """Note the figures of a sample."""
        job = next((job for job in sample.jobs if job.id == self._job), None)
        if job is None or isinstance(sample.processes, Unknown):
            return
        self._began = sample.at if self._began is None else self._began
        self._at = sample.at
        ports = grouped((port.device, port) for port in sample.ports)
        gpus = {gpu.bdf: gpu.live for gpu in sample.gpus}
        for process in members(sample, job):
            series = self._ranks.setdefault(process.pid, _Series(process))
            series.latest = process
            if not isinstance(process.cpu_percent, Unknown):
                series.cpu.append(process.cpu_percent)
            for bdf in process.gpus:
                live = gpus.get(bdf, NOT_READ)
                if isinstance(live, Unknown):
                    continue
                if not isinstance(live.utilization_percent, Unknown):
                    series.gpu.append(float(live.utilization_percent))
                if not isinstance(live.power_watts, Unknown):
                    series.power.append(live.power_watts)
            used = [port for name in process.ready_nics for port in ports.get(name, ())]
            rates = [rate for port in used for rate in (port.sent_gbps, port.received_gbps)]
            moved = [rate for rate in rates if not isinstance(rate, Unknown)]
            if moved:
                series.gbps.append(max(moved))
                if any(moves_data(port) for port in used):
                    series.moved_at = sample.at

    def ranks(self) -> tuple[RankState, ...]:
        """Return the ranks by number."""
        states = [self._state(pid, series) for pid, series in self._ranks.items()]
        return tuple(sorted(states, key=lambda state: (known(state.rank, 1 << 30), state.pid)))

    def _state(self, pid: int, series: _Series) -> RankState:
        process = series.latest
        moved_at = series.moved_at
        never = Unknown(Reason.NOT_THERE, "rates", "no traffic while watched")
        return RankState(
            name=process.rank_name,
            pid=pid,
            rank=process.rank,
            gpus=process.gpus,
            nics=process.ready_nics,
            state=process.state,
            cpu_percent=_median(series.cpu, "CPU time"),
            gpu_percent=_median(series.gpu, "GPU utilization"),
            power_watts=_median(series.power, "power"),
            gbps=max(series.gbps) if series.gbps else _missing("rates"),
            silent_seconds=never if moved_at is None else self._at - moved_at,
            queue_pairs=sum(nic.queue_pairs - nic.merely_open for nic in process.nics),
            ready=sum(nic.active for nic in process.nics),
            gpu_may_post=may_post_by_gpu(process.own_queues),
            unlisted=unlisted(process.own_queues),
        )

    def silence(self) -> Maybe[float]:
        """Return for how many seconds none of the job's NICs has moved data; 0: one still does.

        Unknown: no rates, because the job uses no NIC here or they cannot be read.
        """
        seen = [series for series in self._ranks.values() if series.gbps]
        if not seen or self.seconds <= 0:
            return _missing("rates of the job's NICs")
        moved = [series.moved_at for series in seen if series.moved_at is not None]
        if not moved and self.seconds < SILENT_SECONDS:
            return Unknown(Reason.NOT_RECORDED, "rates", f"watched for only {self.seconds:.0f} s")
        return self._at - max(moved) if moved else self.seconds


def members(sample: LiveSample, job: LiveJob) -> list[LiveProcess]:
    """Return the processes of a job."""
    pids = set(job.pids)
    return [process for process in known(sample.processes, ()) if process.pid in pids]


def _median(values: Sequence[float], what: str) -> Maybe[float]:
    return median(values) if values else _missing(what)


def _missing(what: str) -> Unknown:
    return Unknown(Reason.NOT_THERE, what, f"no {what}")


def different_rank(ranks: Sequence[RankState]) -> tuple[RankState, str] | None:
    """Return the one rank whose GPU or CPU differs from all others, and how; None: no single one does.

    The ranks that wait spin: their GPU shows 100 % and a proxy thread keeps a CPU busy.
    """
    if len(ranks) < _LEAST_RANKS:
        return None
    idle = [rank for rank in ranks if known(rank.gpu_percent, 50.0) <= IDLE_PERCENT]
    waiting = [rank for rank in ranks if known(rank.cpu_percent, 50.0) <= _IDLE_CPU]
    for rank in (*idle[:1], *waiting[:1]):
        others = [other for other in ranks if other is not rank]
        own_gpu, own_cpu = known(rank.gpu_percent, 50.0), known(rank.cpu_percent, 50.0)
        if own_gpu <= IDLE_PERCENT and all(known(other.gpu_percent, 0.0) >= BUSY_PERCENT for other in others):
            return rank, f"its GPU is idle ({own_gpu:.0f} %) while those of the others are at 100 %"
        if own_cpu <= _IDLE_CPU and all(known(other.cpu_percent, 0.0) >= _BUSY_CPU for other in others):
            return rank, f"it uses {own_cpu:.0f} % of a CPU while each of the others keeps one busy"
    return None
