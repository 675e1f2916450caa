"""The NIC or rank that differs from the others of its job."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from probes.base.evidence import Evidence
from probes.base.frozen import frozen
from probes.base.unknown import Unknown
from probes.facts.node import Node
from probes.facts.rdma.port_health import RECEIVED, SENT
from probes.live.model.activity import LEAST_GBPS, rates_of
from probes.live.model.sample import LiveJob, LiveProcess, LiveSample, OddOne, PortSample, SlowestNic
from probes.live.model.settled import Lasting
from probes.live.odd_ranks import (
    LEAST,
    Places,
    members_of,
    odd_gpu_links,
    odd_nic_links,
    odd_ranks,
    places_of,
    what_counts,
)

WINDOW_SECONDS = 10.0
_SHARE = 0.5
_NORMAL_SHARE = 0.7
_SENDING_SHARE = 0.25  # of the highest median: below, the job computes or writes a checkpoint
_SLOWEST_SHARE, _NOT_SLOWEST_SHARE = 0.75, 0.85  # of the median: a job's line names its slowest NIC
_ON, _OFF = 3, 3  # samples until a statement is made and withdrawn


@dataclass
class _Statement:
    """Something odd, that has to last before it is stated."""

    lasting: Lasting
    said: OddOne | None = None


class OddOneOut:
    """Compare NICs and ranks of each job over time."""

    def __init__(self, settles: bool = True) -> None:
        """With `settles`, a statement has to last; without, and in the first sample, it counts at once.

        What is there when gdrtop begins to look is no passing state, so that each command says it.
        """
        self._on, self._settles = 1, settles
        self._statements: dict[tuple[str, str, str], _Statement] = {}  # by job, aspect and subject
        self._rates: dict[str, deque[Rates]] = {}  # by job
        self._slowest: dict[str, SlowestNic | None] = {}  # by job
        self._node: Node | None = None
        self._places = Places({}, {}, {}, {})
        self._alike: dict[str, tuple[object, ...]] = {}  # the members of jobs in which nothing is odd
        self._at = 0.0

    def update(self, sample: LiveSample, node: Node) -> tuple[LiveJob, ...]:
        """Return the jobs with what is odd in them; nothing where a figure that it needs is unknown.

        Ranks are compared only if none is missing: one of two that differ is odd if the other is missing.
        """
        at, jobs, processes = sample.at, sample.jobs, sample.processes
        if at < self._at:  # a recording was rewound
            self._statements.clear()
            self._rates.clear()
            self._slowest.clear()
        self._at = at
        if node is not self._node:
            self._node, self._places = node, places_of(node)
            self._alike.clear()
        seen: dict[tuple[str, str, str], OddOne] = {}
        if not isinstance(processes, Unknown):
            by_device = {port.device: port for port in sample.ports}
            for job in jobs:
                found = {} if sample.missing else self._odd_ranks(job, processes)
                found |= odd_gpu_links(job, processes, sample.gpus)
                found |= self._slow(job, job.own_nics, by_device, at)
                seen.update({(job.id, *key): odd for key, odd in found.items()})
        for key, odd in seen.items():
            self._statements.setdefault(key, _Statement(Lasting(self._on, _OFF))).said = odd
        for key in list(self._statements):
            statement = self._statements[key]
            statement.lasting.update(key in seen)
            if key not in seen and not statement.lasting.is_on:
                del self._statements[key]
        if self._settles and not isinstance(processes, Unknown):
            self._on = _ON
        ids = {job.id for job in jobs}
        for by_job in (self._rates, self._alike, self._slowest):
            for job_id in [job_id for job_id in by_job if job_id not in ids]:
                del by_job[job_id]
        return tuple(self._stated(job) for job in jobs)

    def _odd_ranks(self, job: LiveJob, processes: Iterable[LiveProcess]) -> dict[tuple[str, str], OddOne]:
        """Return the odd ranks and NIC links; the members of a job are compared when one has changed."""
        members = members_of(job, processes)
        now = (job.nics, [what_counts(process) for process in members])
        if self._alike.get(job.id) == now:
            return {}
        found = odd_ranks(members, self._places) | odd_nic_links(job.nics, self._places)
        if found:
            self._alike.pop(job.id, None)
        else:
            self._alike[job.id] = now
        return found

    def _stated(self, job: LiveJob) -> LiveJob:
        odd = tuple(
            statement.said
            for key, statement in self._statements.items()
            if key[0] == job.id and statement.lasting.is_on and statement.said is not None
        )
        slowest = self._slowest.get(job.id)
        is_same = odd == job.odd and slowest == job.slowest_nic
        return job if is_same else replace(job, odd=odd, slowest_nic=slowest)

    def _slow(
        self, job: LiveJob, names: tuple[str, ...], ports: Mapping[str, PortSample], at: float
    ) -> dict[tuple[str, str], OddOne]:
        """Return the NICs below half the median for the whole window."""
        rates = self._rates.setdefault(job.id, deque())
        now = [rates_of(ports.get(name)) for name in names]
        known = [pair for pair in now if pair is not None]
        if len(names) < LEAST or len(known) < len(now) or (rates and rates[-1].names != names):
            rates.clear()
            self._slowest.pop(job.id, None)
            return {}
        sent, received = [pair[0] for pair in known], [pair[1] for pair in known]
        rates.append(rates_at(at, names, sent, received))
        while len(rates) > 1 and rates[1].at <= at - WINDOW_SECONDS:
            rates.popleft()
        if at - rates[0].at < WINDOW_SECONDS:
            return {}
        self._slowest[job.id] = slowest_nic(rates, self._slowest.get(job.id))
        shares_sent, shares_received = nic_shares(rates, 0), nic_shares(rates, 1)
        found: dict[tuple[str, str], OddOne] = {}
        for place, name in enumerate(names):
            here = shares_sent[place], shares_received[place]
            slow = [share for share in here if share.is_odd]
            if not slow:
                continue
            verb, verbs, share = "carries", "carry", slow[0]
            if len(slow) == 1 and max(share.of_others for share in here) > _NORMAL_SHARE:
                verb, verbs = ("sends", "send") if here[0].is_odd else ("receives", "receive")
            sentence = (
                f"{name} {verb} {gbps_text(share.rate)}; "
                f"the other {len(names) - 1} NICs of this job {verbs} {gbps_text(share.others)} (median)"
            )
            path = f"/sys/class/infiniband/{name}/ports/{ports[name].port}/counters"
            source = f"{path}/{SENT if here[0].is_odd else RECEIVED}"
            shown = f"{gbps_text(share.rate)} on average in {WINDOW_SECONDS:.0f} s of traffic"
            evidence = Evidence(source, shown)
            found["rate", name] = OddOne(name, sentence, (evidence,), None, name, "rate")
        return found


@frozen
class Rates:
    """The rates of a job's NICs at one moment, sent and received, in Gb/s."""

    at: float
    names: tuple[str, ...]
    rows: tuple[list[float], list[float]]
    medians: tuple[float, float]
    busier: list[float]  # the higher rate of each NIC


@frozen
class Share:
    """A NIC's rate and the median of the others', in Gb/s, while the job sends."""

    rate: float
    others: float
    is_odd: bool

    @property
    def of_others(self) -> float:
        """The rate as a share of the others'."""
        return self.rate / self.others if self.others else 1.0


def rates_at(at: float, names: tuple[str, ...], sent: list[float], received: list[float]) -> Rates:
    """Return the rates of NICs at one moment, from what each sends and receives in Gb/s."""
    medians = _median(sent), _median(received)
    return Rates(at, names, (sent, received), medians, list(map(max, sent, received)))


def nic_shares(rates: deque[Rates], direction: int) -> list[Share]:
    """Return the share of each NIC in one direction.

    A job sends in phases, and a slow NIC goes on while the others wait for it. So only the samples count in
    which most NICs send.
    """
    least = max(LEAST_GBPS, _SENDING_SHARE * max(rate.medians[direction] for rate in rates))
    sending = [rate.rows[direction] for rate in rates if rate.medians[direction] > least]
    if len(sending) < LEAST:  # too short a burst to compare
        return [Share(0.0, 0.0, is_odd=False)] * len(rates[0].names)
    columns = list(zip(*sending, strict=True))
    means = [sum(column) / len(column) for column in columns]
    highest = [max(column) for column in columns]
    return [
        Share(mean, others, mean < _SHARE * others and peak < _SHARE * others_peak)
        for mean, others, peak, others_peak in zip(
            means, _medians_of_others(means), highest, _medians_of_others(highest), strict=True
        )
    ]


def slowest_nic(rates: deque[Rates], before: SlowestNic | None) -> SlowestNic | None:
    """Return the NIC with the lowest average, if that is far below the median; it stays until it is not.

    `before`: the one that was returned for the samples before.
    """
    names = rates[-1].names
    columns = zip(*(rate.busier for rate in rates), strict=True)
    means = {name: sum(column) / len(rates) for name, column in zip(names, columns, strict=True)}
    middle = _median(means.values())
    if middle < LEAST_GBPS:
        return None
    lowest = min(names, key=means.__getitem__)
    if before is not None and means.get(before.device, middle) < _NOT_SLOWEST_SHARE * middle:
        is_near = means[before.device] * _NOT_SLOWEST_SHARE <= means[lowest]
        lowest = before.device if is_near else lowest
        return SlowestNic(lowest, means[lowest])
    return SlowestNic(lowest, means[lowest]) if means[lowest] < _SLOWEST_SHARE * middle else None


def _median(values: Iterable[float]) -> float:
    from statistics import median  # imports decimal and fractions, which a node without jobs does not need

    return median(values)


def _medians_of_others(values: list[float]) -> list[float]:
    """Return for each of at least two values the median of all others."""
    ordered = sorted(values)
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2  # in the middle of the others
    found = []
    for value in values:
        place = bisect_left(ordered, value)
        # Without it, those behind it move up.
        found.append((ordered[low + (place <= low)] + ordered[high + (place <= high)]) / 2)
    return found


def gbps_text(rate: float) -> str:
    """Return a rate as sentences have it: "370 Gb/s", "4.2 Gb/s"."""
    return f"{rate:,.0f} Gb/s" if rate >= 10 else f"{rate:.1f} Gb/s"
