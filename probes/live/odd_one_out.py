"""The NIC or rank that differs from the others of its job."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from probes.base.unknown import Maybe, Unknown
from probes.facts.node import Node
from probes.live.events.ports import ACTIVE
from probes.live.model.sample import GpuSample, LiveJob, LiveProcess, OddOne, PortSample
from probes.live.model.settled import Lasting
from probes.live.odd_ranks import LEAST, Places, odd_gpu_links, odd_nic_links, odd_ranks, places_of
from probes.queries.finding import Evidence

WINDOW_SECONDS = 10.0
LEAST_GBPS = 1.0
_SHARE = 0.5
_NORMAL_SHARE = 0.7
_SENDING_SHARE = 0.25  # of the highest median: below, the job computes or writes a checkpoint
_ON, _OFF = 3, 3  # samples until a statement is made and withdrawn


@dataclass
class _Statement:
    """Something odd, that has to last before it is stated."""

    lasting: Lasting = field(default_factory=lambda: Lasting(_ON, _OFF))
    said: OddOne | None = None


class OddOneOut:
    """Compare NICs and ranks of each job over time."""

    def __init__(self) -> None:
        self._statements: dict[tuple[str, str, str], _Statement] = {}  # by job, aspect and subject
        self._rates: dict[str, deque[_Rates]] = {}  # by job
        self._node: Node | None = None
        self._places = Places({}, {}, {}, {})
        self._at = 0.0

    def update(
        self,
        jobs: tuple[LiveJob, ...],
        processes: Maybe[tuple[LiveProcess, ...]],
        ports: tuple[PortSample, ...],
        node: Node,
        at: float,
        gpus: tuple[GpuSample, ...] = (),
    ) -> tuple[LiveJob, ...]:
        """Return the jobs with what is odd in them; nothing where a figure that it needs is unknown."""
        if at < self._at:  # a recording was rewound
            self._statements.clear()
            self._rates.clear()
        self._at = at
        if node is not self._node:
            self._node, self._places = node, places_of(node)
        seen: dict[tuple[str, str, str], OddOne] = {}
        if not isinstance(processes, Unknown):
            shared = _shared(jobs)
            by_device = {port.device: port for port in ports}
            for job in jobs:
                own = [name for name in job.nics if name not in shared]
                found = odd_ranks(job, processes, self._places)
                found |= odd_nic_links(job.nics, self._places)
                found |= odd_gpu_links(job, processes, gpus)
                found |= self._slow(job, own, by_device, at)
                seen.update({(job.id, *key): odd for key, odd in found.items()})
        for key, odd in seen.items():
            self._statements.setdefault(key, _Statement()).said = odd
        for key in list(self._statements):
            statement = self._statements[key]
            statement.lasting.update(key in seen)
            if key not in seen and not statement.lasting.is_on:
                del self._statements[key]
        self._forget(jobs)
        return tuple(self._stated(job) for job in jobs)

    def _stated(self, job: LiveJob) -> LiveJob:
        odd = tuple(
            statement.said
            for key, statement in self._statements.items()
            if key[0] == job.id and statement.lasting.is_on and statement.said is not None
        )
        return replace(job, odd=odd) if odd != job.odd else job

    def _forget(self, jobs: tuple[LiveJob, ...]) -> None:
        ids = {job.id for job in jobs}
        for job_id in [job_id for job_id in self._rates if job_id not in ids]:
            del self._rates[job_id]

    def _slow(
        self, job: LiveJob, names: list[str], ports: Mapping[str, PortSample], at: float
    ) -> dict[tuple[str, str], OddOne]:
        """Return the NICs below half the median for the whole window."""
        rates = self._rates.setdefault(job.id, deque())
        now = [_rates_of(ports.get(name)) for name in names]
        known = [pair for pair in now if pair is not None]
        if len(names) < LEAST or len(known) < len(now) or (rates and rates[-1].names != names):
            rates.clear()
            return {}
        rates.append(_Rates(at, names, known))
        while len(rates) > 1 and rates[1].at <= at - WINDOW_SECONDS:
            rates.popleft()
        if at - rates[0].at < WINDOW_SECONDS:
            return {}
        sent, received = (_shares(rates, place) for place in (0, 1))
        found: dict[tuple[str, str], OddOne] = {}
        for place, name in enumerate(names):
            slow = [share for share in (sent[place], received[place]) if share.is_odd]
            if not slow:
                continue
            one, many, share = "carries", "carry", slow[0]
            if len(slow) == 1 and max(sent[place].of_others, received[place].of_others) > _NORMAL_SHARE:
                one, many = ("sends", "send") if sent[place].is_odd else ("receives", "receive")
            sentence = (
                f"{name} {one} {_gbps(share.rate)}; "
                f"the other {len(names) - 1} NICs of this job {many} {_gbps(share.others)} (median)"
            )
            path = f"/sys/class/infiniband/{name}/ports/{ports[name].port}/counters"
            source = f"{path}/{'port_xmit_data' if sent[place].is_odd else 'port_rcv_data'}"
            evidence = Evidence(
                source, f"{_gbps(share.rate)} on average in {WINDOW_SECONDS:.0f} s of traffic"
            )
            found["rate", name] = OddOne(name, sentence, (evidence,), device=name)
        return found


@dataclass(frozen=True)
class _Rates:
    """The rates of a job's NICs at one moment: (sent, received) in Gb/s."""

    at: float
    names: list[str]
    pairs: list[tuple[float, float]]


@dataclass(frozen=True)
class _Share:
    """A NIC's rate and the median of the others', in Gb/s, while the job sends."""

    rate: float
    others: float
    is_odd: bool

    @property
    def of_others(self) -> float:
        return self.rate / self.others if self.others else 1.0


def _rates_of(port: PortSample | None) -> tuple[float, float] | None:
    if port is None or port.state != ACTIVE:
        return None
    if isinstance(port.sent_gbps, Unknown) or isinstance(port.received_gbps, Unknown):
        return None
    return port.sent_gbps, port.received_gbps


def _shares(rates: deque[_Rates], direction: int) -> list[_Share]:
    """Return the share of each NIC in one direction.

    A job sends in phases, and a slow NIC goes on while the others wait for it. So only the samples count in
    which most NICs send.
    """
    rows = [[pair[direction] for pair in one.pairs] for one in rates]
    medians = [median(row) for row in rows]
    least = max(LEAST_GBPS, _SENDING_SHARE * max(medians))
    sending = [row for row, usual in zip(rows, medians, strict=True) if usual > least]
    if len(sending) < LEAST:  # too short a burst to compare
        return [_Share(0.0, 0.0, is_odd=False) for _ in rows[0]]
    columns = list(zip(*sending, strict=True))
    means = [sum(column) / len(column) for column in columns]
    highest = [max(column) for column in columns]
    found = []
    for place, mean in enumerate(means):
        others = median(means[:place] + means[place + 1 :])
        peak = median(highest[:place] + highest[place + 1 :])
        found.append(_Share(mean, others, mean < _SHARE * others and highest[place] < _SHARE * peak))
    return found


def _shared(jobs: tuple[LiveJob, ...]) -> frozenset[str]:
    """Return the NICs that several jobs use: their rates do not belong to one job."""
    once: set[str] = set()
    twice: set[str] = set()
    for job in jobs:
        twice |= once.intersection(job.nics)
        once.update(job.nics)
    return frozenset(twice)


def _gbps(rate: float) -> str:
    return f"{rate:,.0f} Gb/s" if rate >= 10 else f"{rate:.1f} Gb/s"
