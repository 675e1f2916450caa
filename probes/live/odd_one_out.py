"""The NIC or rank that differs from the others of its job."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from probes.base.unknown import Maybe, Unknown
from probes.facts.node import Node
from probes.live.odd_ranks import LEAST, Places, odd_gpu_links, odd_nic_links, odd_ranks, places_of
from probes.live.port_events import ACTIVE
from probes.live.sample import GpuSample, LiveJob, LiveProcess, OddOne, PortSample
from probes.live.settled import Lasting
from probes.queries.finding import Evidence

WINDOW_SECONDS = 10.0
LEAST_GBPS = 1.0
_SHARE = 0.5
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
        self._rates: dict[tuple[str, str], deque[tuple[float, float, float]]] = {}  # (at, sent, received)
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
        wanted = {(job.id, name) for job in jobs for name in job.nics}
        for key in [key for key in self._rates if key not in wanted]:
            del self._rates[key]

    def _slow(
        self, job: LiveJob, names: list[str], ports: Mapping[str, PortSample], at: float
    ) -> dict[tuple[str, str], OddOne]:
        """Return the NICs below half the median for the whole window.

        A job's traffic comes in phases, so the highest rates within the window are compared. A slow NIC
        goes on while the others wait for it.
        """
        highest: dict[str, tuple[float, float]] = {}
        for name in names:
            port = ports.get(name)
            rates = self._rates.setdefault((job.id, name), deque())
            if port is None or isinstance(port.sent_gbps, Unknown) or isinstance(port.received_gbps, Unknown):
                rates.clear()
                continue
            if port.state != ACTIVE:
                rates.clear()
                continue
            rates.append((at, port.sent_gbps, port.received_gbps))
            while len(rates) > 1 and rates[1][0] <= at - WINDOW_SECONDS:
                rates.popleft()
            if at - rates[0][0] >= WINDOW_SECONDS:
                highest[name] = (max(rate[1] for rate in rates), max(rate[2] for rate in rates))
        if len(names) < LEAST or len(highest) != len(names):
            return {}
        found: dict[tuple[str, str], OddOne] = {}
        for place, verb, source in ((0, "sends", "port_xmit_data"), (1, "receives", "port_rcv_data")):
            for name in names:
                others = median(rates[place] for other, rates in highest.items() if other != name)
                rate = highest[name][place]
                if others <= LEAST_GBPS or rate >= _SHARE * others:
                    continue
                before = found.get(("rate", name))
                one, many = ("carries", "carry") if before else (verb, verb.removesuffix("s"))
                sentence = (
                    f"{name} {one} {_gbps(rate)}; "
                    f"the other {len(names) - 1} NICs of this job {many} {_gbps(others)} (median)"
                )
                path = f"/sys/class/infiniband/{name}/ports/{ports[name].port}/counters/{source}"
                evidence = Evidence(path, f"at most {_gbps(rate)} in {WINDOW_SECONDS:.0f} s")
                all_evidence = (*before.evidence, evidence) if before else (evidence,)
                found["rate", name] = OddOne(name, sentence, all_evidence, device=name)
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
