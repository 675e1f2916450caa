"""Events of rates: the traffic of a job's NIC fell below half of its last minute, or recovered.

Training alternates between compute, all-reduce and checkpoint every few seconds, so a rate is compared by
its highest values over windows of time, and the windows are longer where the traffic pauses by itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

from probes.base.evidence import Evidence, Severity
from probes.base.text import plural
from probes.base.unknown import Unknown
from probes.live.model.activity import LEAST_GBPS, least_gbps, rates_of
from probes.live.model.explanations import explained
from probes.live.model.sample import (
    COLLISION,
    EventKind,
    LiveEvent,
    LiveJob,
    LiveProcess,
    LiveSample,
    PortSample,
    Role,
)
from probes.snapshot.condition import CONGESTED, TRAFFIC_FELL, Condition

_SHARE = 0.5
_RECOVERED_SHARE = 0.7
_BASE_SECONDS = 60.0
_BUCKET_SECONDS = 10.0  # the last minute's rate is the median of the highest rates in these
_BUCKET_AGES = tuple(_BUCKET_SECONDS * number for number in range(6, -1, -1))  # where they end, oldest first
_KEPT_SECONDS = 120.0
_GAP_SECONDS = 1800.0  # how long a pause of the traffic is remembered
# Seconds below half before it is an event, and the history that this needs.
_STEADY = (1.5, 5.0)  # a benchmark sends all the time
_BESIDE_OTHERS = (4.5, 10.0)  # while the job's other NICs go on
_PHASES = (20.0, 10.0)
_RECOVERED_SAMPLES = 2
_CONGESTED_SHARE = 0.8  # of the rate before the congestion


@dataclass
class _Nic:
    """The rates of one device while it has the same users."""

    users: frozenset[int]
    least: float = LEAST_GBPS  # rates below are noise
    times: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)  # Gb/s, at these times
    gaps: deque[tuple[float, float]] = field(default_factory=deque)  # (ended at, seconds) below half
    low_since: float | None = None
    usual: float = 0.0  # Gb/s, of the last minute before the rate fell
    is_low: bool = False  # it belongs to a fall that was reported
    high: int = 0  # samples in a row

    def add(self, at: float, rate: float) -> None:
        """Append a rate, and note since when it is below half of the usual one."""
        if self.low_since is None:
            self.usual = self._usual(at)
        self.times.append(at)
        self.rates.append(rate)
        if old := bisect_left(self.times, at - _KEPT_SECONDS):
            del self.times[:old], self.rates[:old]
        while self.gaps and self.gaps[0][0] < at - _GAP_SECONDS:
            self.gaps.popleft()
        if self.usual < self.least:
            return
        if rate < _SHARE * self.usual:
            self.high = 0
            if self.low_since is None:
                self.low_since = at
        elif self.is_low:
            self.high += rate >= _RECOVERED_SHARE * self.usual
        elif self.low_since is not None:
            self.gaps.append((at, at - self.low_since))
            self.low_since = None

    def history(self) -> float:
        """Return for how long the rate was watched before it fell."""
        if not self.rates:
            return 0.0
        until = self.times[-1] if self.low_since is None else self.low_since
        return until - self.times[0]

    def longest_gap(self) -> float:
        """Return the longest time below half that ended by itself."""
        return max((seconds for _, seconds in self.gaps), default=0.0)

    def _usual(self, at: float) -> float:
        highest: list[float] = []
        first = bisect_left(self.times, at - _BASE_SECONDS)
        for age in _BUCKET_AGES:
            end = bisect_right(self.times, at - age, first)
            if end > first:
                highest.append(max(self.rates[first:end]))
            first = end
        return median(highest) if highest else 0.0

    def peak(self, begin: float, end: float) -> float:
        first, last = bisect_left(self.times, begin), bisect_right(self.times, end)
        return max(self.rates[first:last], default=0.0)


@dataclass
class _Fall:
    """Traffic of a job, or of one of its NICs, that fell and has not recovered."""

    job: LiveJob
    nic: str  # "": of the job
    since: float  # seconds since 1970
    low: dict[str, _Nic]  # NICs that have not recovered

    @property
    def subject(self) -> str:
        return self.nic or self.job.id

    @property
    def name(self) -> str:
        return self.nic or self.job.name

    @property
    def text(self) -> str:
        now = sum(nic.rates[-1] for nic in self.low.values())
        before = sum(nic.usual for nic in self.low.values())
        who = self.nic or f"{plural(len(self.low), 'NIC')} of {self.job.name}"
        verb = "carries" if len(self.low) == 1 else "carry"
        return f"{who} {verb} {_gbps(now, before)}, down from {_gbps(before, before)} the minute before"

    def condition(self) -> Condition:
        shown = (Evidence(f"{_port(next(iter(self.low)))}/counters/port_xmit_data", self.text),)
        # All NICs of a job wait for its slowest part.
        subjects = () if self.nic else (self.job.subject.union(self.low),)
        about = (tuple(self.low), (), self.job.id, self.job.name, subjects)
        return Condition(TRAFFIC_FELL, self.subject, self.text, self.since, Severity.WARNING, shown, *about)


class RateEvents:
    """Compare the rate of each NIC that a job uses with its last minute."""

    def __init__(self) -> None:
        self._nics: dict[str, _Nic] = {}
        self._falls: dict[str, _Fall] = {}  # by subject
        self._before: dict[str, float] = {}  # Gb/s before the congestion, by job

    def update(self, sample: LiveSample) -> list[LiveEvent]:
        """Return the rates that fell or recovered; nothing of NICs without connected queue pairs.

        A sample whose processes are unknown changes nothing.
        """
        if isinstance(sample.processes, Unknown):
            return []
        ports = {port.device: port for port in sample.ports}
        users = self._users(sample.processes)
        for name in [name for name in self._nics if name not in users]:
            del self._nics[name]
        for name, pids in users.items():
            self._add(name, pids, ports.get(name), sample.at)
        events: list[LiveEvent] = []
        for job in sample.jobs:
            if job.role is not Role.STORAGE:  # its traffic comes in bursts
                events += self._fallen(job, sample)
        return events + self._recovered(sample)

    def conditions(self) -> Iterator[Condition]:
        """Yield the jobs and NICs whose traffic is still below half of what it was."""
        for fall in self._falls.values():
            yield fall.condition()

    def congested(self, sample: LiveSample, ports: Mapping[str, tuple[float, str]]) -> Iterator[Condition]:
        """Yield the jobs that carry clearly less since their ports show congestion.

        `ports`: since when (seconds, Host.monotonic()) and by which counter, by device.
        """
        if isinstance(sample.processes, Unknown):
            return
        earlier, self._before = self._before, {}
        for job in sample.jobs:
            collided = {odd.device for odd in job.odd if COLLISION in odd.causes}  # a finding of its own
            of_job = self._nics_of(job)
            names = [name for name in of_job if name in ports and name not in collided]
            if not names or job.role is Role.STORAGE:
                continue
            begin = min(ports[name][0] for name in names)
            nics = [self._nics[name] for name in names]
            usual = earlier.get(job.id)
            if usual is None:  # the rates of that time are forgotten after two minutes
                usual = sum(nic.peak(begin - _BASE_SECONDS, begin - _BUCKET_SECONDS) for nic in nics)
            self._before[job.id] = usual
            rate = sum(nic.peak(sample.at - _BASE_SECONDS / 2, sample.at) for nic in nics)
            is_early = sample.at - begin < _BASE_SECONDS / 2
            if is_early or usual < LEAST_GBPS or rate >= _CONGESTED_SHARE * usual:
                continue
            text = (
                f"{job.name} carries at most {_gbps(rate, usual)} on {plural(len(names), 'NIC')} that report "
                f"congestion, down from {_gbps(usual, usual)}"
            )
            if 1 < len(names) == len(of_job):
                text += ". All of its NICs do, as with several senders to one receiver (incast)"
            shown = tuple(Evidence(_port(name), f"{ports[name][1]} rises") for name in names)
            since, about = sample.taken_at - (sample.at - begin), (tuple(names), (), job.id, job.name)
            yield Condition(CONGESTED, job.id, text, since, Severity.WARNING, shown, *about)

    def _add(self, name: str, pids: frozenset[int], port: PortSample | None, at: float) -> None:
        nic = self._nics.get(name)
        if nic is None or not nic.users & pids:
            nic = self._nics[name] = _Nic(pids)
        nic.users = pids
        rates = rates_of(port)
        if rates is None or port is None:
            # A port that is down is an event of its own.
            nic.low_since = nic.low_since if nic.is_low else None
            return
        nic.least = least_gbps(port)
        nic.add(at, max(rates))

    def _users(self, processes: Iterable[LiveProcess]) -> dict[str, frozenset[int]]:
        """Return the pids with connected queue pairs by device; those not listed keep their devices."""
        users: dict[str, set[int]] = {}
        for process in processes:
            devices: Iterable[str] = process.ready_nics
            if not process.is_listed:
                devices = [name for name, nic in self._nics.items() if process.pid in nic.users]
            for device in devices:
                users.setdefault(device, set()).add(process.pid)
        return {device: frozenset(pids) for device, pids in users.items()}

    def _nics_of(self, job: LiveJob) -> dict[str, _Nic]:
        return {name: nic for name, nic in self._nics.items() if not nic.users.isdisjoint(job.pids)}

    def _fallen(self, job: LiveJob, sample: LiveSample) -> list[LiveEvent]:
        nics = self._nics_of(job)
        judged = {name: nic for name, nic in nics.items() if not nic.is_low}
        new = {name: nic for name, nic in judged.items() if self._is_low(nic, nics, job, sample.at)}
        if not new:
            return []
        falls = [_Fall(job, name, sample.taken_at, {name: nic}) for name, nic in new.items()]
        # The NICs of a job that stops do not fall in one second.
        low = {name: nic for name, nic in nics.items() if nic.low_since is not None}
        if len(low) > 1 and 2 * len(low) > len(nics):
            new = {name: nic for name, nic in low.items() if not nic.is_low}
            if (known := self._falls.get(job.id)) is not None:
                known.low.update(new)
                falls = []
            elif len(new) > 1:
                falls = [_Fall(job, "", sample.taken_at, new)]
        for nic in new.values():
            nic.is_low = True
        self._falls.update((fall.subject, fall) for fall in falls)
        return [_event(EventKind.RATE_FELL, fall.name, fall.text, sample.taken_at) for fall in falls]

    def _is_low(self, nic: _Nic, nics: Mapping[str, _Nic], job: LiveJob, at: float) -> bool:
        low = 0.0 if nic.low_since is None else at - nic.low_since
        if low <= 0:
            return False
        history = nic.history()
        if job.role is Role.PERFTEST:
            return low >= _STEADY[0] and history >= _STEADY[1]
        others = [other for other in nics.values() if other is not nic]
        if len(others) > 1 and all(other.low_since is None for other in others):
            return low >= max(_BESIDE_OTHERS[0], 2 * nic.longest_gap()) and history >= _BESIDE_OTHERS[1]
        return low >= max(_PHASES[0], 2 * nic.longest_gap()) and history >= _PHASES[1]

    def _recovered(self, sample: LiveSample) -> list[LiveEvent]:
        """Return the falls of which every NIC that the job still uses has recovered."""
        events = []
        jobs = {job.id: job for job in sample.jobs}
        for fall in list(self._falls.values()):
            job = jobs.get(fall.job.id)
            used = {} if job is None else self._nics_of(job)
            recovered = []
            for name, nic in list(fall.low.items()):
                is_used = used.get(name) is nic
                if is_used and nic.high < _RECOVERED_SAMPLES:
                    continue
                del fall.low[name]
                if is_used:
                    recovered.append(_gbps(nic.rates[-1], nic.usual))
                nic.is_low, nic.low_since, nic.high = False, None, 0
            if fall.low:
                continue
            del self._falls[fall.subject]
            if recovered:
                text = f"{fall.name} {f'carries {recovered[0]}' if fall.nic else 'sends'} again"
                events.append(_event(EventKind.RATE_RECOVERED, fall.name, text, sample.taken_at))
        return events


def _port(device: str) -> str:
    return f"/sys/class/infiniband/{device}/ports/1"


def _gbps(rate: float, usual: float) -> str:
    """Return a rate in Gb/s, or in Mb/s where the usual one is below 1 Gb/s."""
    if usual < 1:
        return f"{rate * 1000:.0f} Mb/s"
    return f"{rate:,.0f} Gb/s" if rate >= 10 else f"{rate:.1f} Gb/s"


def _event(kind: EventKind, subject: str, text: str, at: float) -> LiveEvent:
    severity = Severity.WARNING if kind is EventKind.RATE_FELL else Severity.NOTE
    return explained(at, kind, severity, subject, text)
