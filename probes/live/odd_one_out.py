"""The NIC or rank that differs from the others of its job."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import TypeVar

from probes.base.evidence import Evidence
from probes.base.frozen import frozen
from probes.base.text import plural
from probes.base.unknown import Maybe, Unknown, known, map_known
from probes.facts.node import Node
from probes.facts.pci.functions import PciFacts, PciFunction, words
from probes.facts.rdma.port_health import CNPS, MANY_CNPS, PORT_COUNTERS, RECEIVED, SENT, Harm
from probes.facts.system.numa import parse_list
from probes.live.events.gpus import FULL_SPEED_PERCENT
from probes.live.model.activity import LEAST_GBPS, rates_of
from probes.live.model.sample import (
    COLLISION,
    GpuSample,
    LiveJob,
    LiveProcess,
    LiveSample,
    OddOne,
    PathWord,
    PortSample,
    SlowestNic,
    path_phrase,
)
from probes.live.model.settled import Lasting

# The rank that differs from an otherwise uniform job: path, NICs, PCIe link, CPU affinity, stopped.

LEAST = 3  # members; of two, neither is the odd one
_PART = 4  # at most one in four may be odd
H = TypeVar("H", bound=Hashable)
T = TypeVar("T")


@frozen
class Places:
    """Where the GPUs and NICs of a node are."""

    functions: Mapping[str, PciFunction]  # by BDF
    nics: Mapping[str, str]  # RDMA device -> BDF
    gpu_nodes: Mapping[str, int]  # BDF -> NUMA node
    cpus: Mapping[int, frozenset[int]]  # NUMA node -> CPUs
    roce: frozenset[str] = frozenset()  # RDMA devices with Ethernet ports


def places_of(node: Node) -> Places:
    """Return what is known of the places; the rest is left out."""
    devices, gpus = node.rdma_devices, node.known_gpus
    nodes = () if isinstance(node.numa, Unknown) else node.numa.nodes
    return Places(
        node.pci.functions if isinstance(node.pci, PciFacts) else {},
        {device.name: device.bdf for device in devices if not isinstance(device.bdf, Unknown)},
        {gpu.bdf: gpu.numa_node for gpu in gpus if not isinstance(gpu.numa_node, Unknown)},
        {numa.number: _cpus(numa.cpulist) for numa in nodes if not isinstance(numa.cpulist, Unknown)},
        frozenset(each.name for each in devices if any(port.link_layer == "Ethernet" for port in each.ports)),
    )


@lru_cache(maxsize=256)
def _cpus(text: str) -> frozenset[int]:
    return frozenset(parse_list(text) or ())


def odd_members(members: Sequence[T], value: Callable[[T], H | None]) -> tuple[list[T], H] | None:
    """Return the few members unlike all others, and the others' value; None: alike, mixed or unknown."""
    values = [value(member) for member in members]
    # Nearly always all are alike.
    if len(values) < LEAST or values.count(values[0]) == len(values) or None in values:
        return None
    usual = Counter(values).most_common(1)[0][0]
    odd = [member for member, value in zip(members, values, strict=True) if value != usual]
    if usual is None or len(odd) > max(1, len(members) // _PART):
        return None
    return odd, usual


def members_of(job: LiveJob, processes: Iterable[LiveProcess]) -> list[LiveProcess]:
    """Return the processes of a job that use a GPU or a NIC: not its launcher and its data loaders."""
    pids = frozenset(job.pids)
    return [process for process in processes if process.pid in pids and (process.gpus or process.ready_nics)]


def what_counts(process: LiveProcess) -> tuple[object, ...]:
    """Return everything of a member that may be odd."""
    path = process.path.word
    return process.pid, process.process, process.state, path, process.gpus, process.ready_nics


def odd_ranks(members: Sequence[LiveProcess], places: Places) -> dict[tuple[str, str], OddOne]:
    """Return the odd ranks of a job by aspect and subject."""
    found: dict[tuple[str, str], OddOne] = {}

    def add(aspect: str, process: LiveProcess, said: str, *evidence: Evidence) -> None:
        subject = subject_of(process)
        found[aspect, subject] = OddOne(subject, f"{subject} {said}", evidence, process.pid, aspect=aspect)

    stopped = odd_members(members, attrgetter("is_stopped"))
    for process in stopped[0] if stopped else ():
        others = _others(members, stopped, "are waiting for it" if process.is_stopped else "are stopped")
        add("state", process, f"{'is stopped' if process.is_stopped else 'is running'}; {others}")
    paths = odd_members(members, lambda each: None if each.path.word is PathWord.UNKNOWN else each.path.word)
    if paths:
        others = _others(members, paths, path_phrase(paths[1], of_many=True))
        for process in paths[0]:
            path = process.path
            if path.word is not PathWord.NO_NIC:
                said = f"{'likely ' * path.is_likely}{path_phrase(path.word)}; {others}"
                add("path", process, said, *path.evidence)
    if nics := odd_members(members, lambda process: len(process.ready_nics)):
        usual = f"use {plural(nics[1], 'NIC')} each"
        for process in nics[0]:
            add("nics", process, f"{_said_nics(process)}; {_others(members, nics, usual)}")
    near = None if nics else odd_members(members, lambda process: _place(process, places))
    for process in near[0] if near else ():
        place = _place(process, places)
        if near and place is not None and place > near[1]:
            said = f"uses {', '.join(process.ready_nics[:3])} {_PLACES[place][0]}"
            add("place", process, f"{said}; {_others(members, near, f'use a NIC {_PLACES[near[1]][1]}')}")
    cpus = odd_members(members, lambda process: _cpus_are_near(process, places))
    for process in cpus[0] if cpus and cpus[1] else ():
        said = "is limited to CPUs on a different NUMA node than its GPU"
        allowed = Evidence(f"/proc/{process.pid}/status", f"Cpus_allowed_list: {_allowed_cpus(process)}")
        add("cpus", process, f"{said}; {_others(members, cpus, 'run near theirs')}", allowed)
    return found


def odd_nic_links(names: Sequence[str], places: Places) -> dict[tuple[str, str], OddOne]:
    """Return the NICs of a job whose PCIe link differs from the others'."""

    def link(name: str) -> str | None:
        function = places.functions.get(places.nics.get(name, ""))
        return None if function is None else words(function.link.speed_gtps, function.link.width) or None

    found = {}
    if odd := odd_members(names, link):
        others = f"the other {len(names) - len(odd[0])} NICs of this job have {odd[1]}"
        for name in odd[0]:
            source = f"/sys/bus/pci/devices/{places.nics[name]}/current_link_speed"
            sentence = f"{name} has a PCIe link of {link(name)}; {others}"
            evidence = (Evidence(source, link(name) or ""),)
            found["link", name] = OddOne(name, sentence, evidence, None, name, "link")
    return found


def odd_gpu_links(
    job: LiveJob, processes: Iterable[LiveProcess], gpus: Iterable[GpuSample]
) -> dict[tuple[str, str], OddOne]:
    """Return the GPUs of a job whose PCIe link differs; an idle GPU lowers its speed, but not its width."""
    pids = frozenset(job.pids)
    owners = {bdf: process for process in processes if process.pid in pids for bdf in process.gpus}
    members = [gpu for gpu in gpus if gpu.bdf in owners]
    lives = [gpu.live for gpu in members if not isinstance(gpu.live, Unknown)]
    if len({(live.link_generation, live.link_width) for live in lives}) < 2:  # nearly always
        return {}
    are_busy = all(known(live.utilization_percent, 0) >= FULL_SPEED_PERCENT for live in lives)

    def link(gpu: GpuSample) -> str | None:
        if isinstance(gpu.live, Unknown) or isinstance(gpu.live.link_width, Unknown):
            return None
        if not are_busy:
            return f"x{gpu.live.link_width}"
        speed = gpu.live.link_generation
        return None if isinstance(speed, Unknown) else f"Gen{speed} x{gpu.live.link_width}"

    found = {}
    if odd := odd_members(members, link):
        others = f"the other {len(members) - len(odd[0])} GPUs of this job have {odd[1]}"
        for gpu in odd[0]:
            name = gpu.bdf if isinstance(gpu.index, Unknown) else f"GPU {gpu.index}"
            sentence = f"{name} has a PCIe link of {link(gpu)}; {others}"
            evidence = (Evidence(f"NVML, {gpu.bdf}", link(gpu) or ""),)
            found["link", name] = OddOne(name, sentence, evidence, owners[gpu.bdf].pid, gpu.bdf, "link")
    return found


def subject_of(process: LiveProcess) -> str:
    """Return "rank 5 (pid 4716)", or "pid 4716" if the rank is unknown."""
    if isinstance(process.rank, Unknown):
        return f"pid {process.pid}"
    return f"rank {process.rank} (pid {process.pid})"


def _others(members: Sequence[LiveProcess], odd: tuple[list[LiveProcess], object] | None, what: str) -> str:
    count = len(members) - (len(odd[0]) if odd else 0)
    return f"the other {count} ranks of this job {what}"


def _said_nics(process: LiveProcess) -> str:
    if not (names := process.ready_nics):
        return "uses no NIC"
    return f"uses {len(names)} NICs" if len(names) > 3 else f"uses {', '.join(names)}"


_PLACES = (
    ("below the PCIe switch of its GPU", "below their GPU's PCIe switch"),
    ("on the NUMA node of its GPU", "on their GPU's NUMA node"),
    ("on a different NUMA node than its GPU", "on a different NUMA node than their GPU"),
)


def _place(process: LiveProcess, places: Places) -> int | None:
    """Return how near its nearest NIC is to its GPU, as an index of _PLACES."""
    if len(process.gpus) != 1 or not process.ready_nics:
        return None
    gpu = places.functions.get(process.gpus[0])
    gpu_node = places.gpu_nodes.get(process.gpus[0])
    nics = [places.functions.get(places.nics.get(name, "")) for name in process.ready_nics]
    if gpu is None or gpu_node is None:
        return None
    distances = []
    for nic in nics:
        if nic is None or isinstance(nic.numa_node, Unknown):
            return None
        # Below one switch, the chains share more than the root port.
        shared = sum(a == b for a, b in zip(gpu.chain, nic.chain, strict=False))
        distances.append(0 if shared > 1 else 1 if nic.numa_node == gpu_node else 2)
    return min(distances)


def _cpus_are_near(process: LiveProcess, places: Places) -> bool | None:
    """Return whether the process may run on a CPU near its GPU."""
    nodes = {places.gpu_nodes.get(gpu) for gpu in process.gpus}
    number = nodes.pop() if len(nodes) == 1 else None
    near = None if number is None else places.cpus.get(number)
    allowed = _cpus(_allowed_cpus(process))
    return bool(near & allowed) if near and allowed else None


def _allowed_cpus(process: LiveProcess) -> str:
    """Return the CPUs on which a process may run, as a list; "" if they are unknown."""
    return known(map_known(process.process.usage, lambda usage: usage.cpus), "")


WINDOW_SECONDS = 10.0
_SHARE = 0.5
_NORMAL_SHARE = 0.7
_COLLIDED_SHARE = 0.65  # of two connections on one uplink, each gets half
_TIMES_CNPS = 5  # as many as the other NICs get
_ERRORS = frozenset(
    counter.name
    for counter in PORT_COUNTERS
    if counter.rise and counter.rise.harm not in (Harm.CONGESTION, Harm.RECEIVER, Harm.REORDERED)
)
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
        rates.append(rates_at(at, names, sent, received, [ports[name].counters for name in names]))
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
            cnps = 0.0
            if name in self._places.roce and min(share.of_others for share in here) < _COLLIDED_SHARE:
                cnps = _cnps_alone(rates, place)
            if cnps and not slow:
                slow = [min(here, key=lambda share: share.of_others)]
            if not slow:
                continue
            verb, verbs, share = "carries", "carry", slow[0]
            if len(slow) == 1 and max(share.of_others for share in here) > _NORMAL_SHARE:
                verb, verbs = ("sends", "send") if slow[0] is here[0] else ("receives", "receive")
            sentence = (
                f"{name} {verb} {gbps_text(share.rate)}; "
                f"the other {len(names) - 1} NICs of this job {verbs} {gbps_text(share.others)} (median)"
            )
            path = f"/sys/class/infiniband/{name}/ports/{ports[name].port}/counters"
            source = f"{path}/{SENT if slow[0] is here[0] else RECEIVED}"
            shown = f"{gbps_text(share.rate)} on average in {WINDOW_SECONDS:.0f} s of traffic"
            evidence = [Evidence(source, shown)]
            if cnps:
                sentence += "; congestion slows this NIC alone, without errors: likely an ECMP collision"
                shown = f"{cnps:,.0f} congestion notifications a second; the other NICs have few"
                evidence.append(Evidence(f"{path.removesuffix('counters')}hw_counters", shown))
            causes = (COLLISION,) if cnps else ()
            found["rate", name] = OddOne(name, sentence, tuple(evidence), None, name, "rate", causes)
        return found


@frozen
class Rates:
    """The rates of a job's NICs at one moment, sent and received, in Gb/s."""

    at: float
    names: tuple[str, ...]
    rows: tuple[list[float], list[float]]
    medians: tuple[float, float]
    busier: list[float]  # the higher rate of each NIC
    counters: Sequence[Mapping[str, Maybe[float]]] = ()  # of each NIC, events a second


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


def rates_at(
    at: float,
    names: tuple[str, ...],
    sent: list[float],
    received: list[float],
    counters: Sequence[Mapping[str, Maybe[float]]] = (),
) -> Rates:
    """Return the rates of NICs at one moment, from what each sends and receives in Gb/s."""
    medians = _median(sent), _median(received)
    return Rates(at, names, (sent, received), medians, list(map(max, sent, received)), counters)


def _cnps_alone(rates: deque[Rates], place: int) -> float:
    """Return how many congestion notifications a NIC gets a second; 0: not many, others too, or errors.

    On all NICs alike, they come from several senders to one receiver (incast).
    """

    def mean(place: int, names: frozenset[str]) -> float:
        counters = (rate.counters[place] for rate in rates)
        return sum(known(each.get(name, 0.0), 0.0) for each in counters for name in names) / len(rates)

    own = mean(place, CNPS)
    if own < MANY_CNPS or mean(place, _ERRORS):
        return 0.0
    others = max(mean(other, CNPS) for other in range(len(rates[-1].names)) if other != place)
    return own if own >= _TIMES_CNPS * others else 0.0


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
    """Return the NIC whose average is far below the median; it is `before` until that no longer is."""
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
