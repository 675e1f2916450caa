"""What the components of a node do in each job, summed up for the history, and what that says of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from probes.base.evidence import Severity
from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.latest import Latest
from probes.base.text import plural
from probes.base.unknown import Unknown, known
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.node import Node
from probes.facts.rdma.devices import RdmaFacts, port_name
from probes.host.component_history import (
    LEAST_COMPARED_SECONDS,
    LEAST_SLOW_SHARE,
    Component,
    ComponentHistory,
    Mark,
)
from probes.live.model.activity import LEAST_GBPS, rates_of
from probes.live.model.sample import (
    STEP_ROLES,
    EventKind,
    LiveEvent,
    LiveJob,
    LiveProcess,
    LiveSample,
    PortSample,
)
from probes.live.odd_one_out import LEAST
from probes.queries.finding import Finding, concerns, costs_bandwidth
from probes.topology.paths import Topology

_NO_GUID = "0000:0000:0000:0000"


@frozen
class Identity:
    """A component, by what stays when devices are renamed."""

    id: str
    name: str
    is_gpu: bool
    bdf: str


def identities_of(node: Node) -> dict[str, Identity]:
    """Return the ports of a node by name, and its GPUs by BDF."""
    found: dict[str, Identity] = {}
    for device in node.rdma_devices:
        bdf, guid = known(device.bdf, ""), known(device.node_guid, "")
        begin = guid if guid and guid != _NO_GUID else bdf or device.name
        for port in device.ports:
            name = port_name(device.name, port.number)
            found[name] = Identity(f"{begin}/{port.number}", name, is_gpu=False, bdf=bdf)
    for gpu in node.known_gpus:
        found[gpu.bdf] = Identity(known(gpu.uuid, gpu.bdf), f"GPU {gpu.index}", is_gpu=True, bdf=gpu.bdf)
    return found


LEAST_JOB_SECONDS = 60.0  # a shorter job is not kept
_LONGEST_STEP = 5.0  # seconds that one sample may stand for
_MOST_WAITING = 100  # jobs that have ended, while nothing can be written
_DAY_SECONDS = 86400
_MARKS = {
    EventKind.ERRORS_RISING: Mark.ERRORS,
    EventKind.PAUSE: Mark.PAUSED,
    EventKind.PORT_RATE: Mark.LINE_RATE,
    EventKind.LINK_RETRAINED: Mark.PCIE_LINK,
    EventKind.XID: Mark.XID,
    EventKind.GPU_LOST: Mark.LOST,
    EventKind.THROTTLED: Mark.THROTTLED,
}


@dataclass
class PartChange:
    """What to add to a component's part in a job."""

    compared_seconds: float = 0.0
    slow_seconds: float = 0.0
    counts: dict[Mark, int] = field(default_factory=dict)


@dataclass
class JobChange:
    """What to add to a job."""

    id: str
    name: str
    began: float  # seconds since 1970, when it was first seen
    since: float  # the first sample of this change
    until: float  # the last sample
    seconds: float = 0.0  # in all, for which it was seen
    parts: dict[str, PartChange] = field(default_factory=dict)  # by the component's id


@frozen
class Changes:
    """What to add to the history."""

    at: float  # seconds since 1970
    components: tuple[Identity, ...]
    jobs: tuple[JobChange, ...]
    days: Mapping[tuple[int, str, Mark], int]  # by day since 1970 (UTC), component and mark
    losses: Mapping[tuple[int, str], tuple[float, ...]]  # the figures of Loss, by day and finding


class ComponentTally:
    """Sums up the samples of a node."""

    def __init__(self) -> None:
        self._node: Node | None = None
        self._identities: dict[str, Identity] = {}  # by the port's name or the GPU's BDF
        self._running: dict[str, JobChange] = {}
        self._ended: list[JobChange] = []
        self._days: dict[tuple[int, str, Mark], int] = {}
        self._costs: Latest[dict[str, dict[str, Share]]] = Latest()
        self._losses: dict[tuple[int, str], tuple[float, ...]] = {}
        self._at: float | None = None
        self._taken_at = 0.0

    def update(self, sample: LiveSample, node: Node, topology: Topology | None = None) -> None:
        """Add a sample; `topology`: of the node, without which findings are not counted."""
        if node is not self._node:
            self._node, self._identities = node, identities_of(node)
        step = 0.0 if self._at is None else min(max(0.0, sample.at - self._at), _LONGEST_STEP)
        self._at, self._taken_at = sample.at, sample.taken_at
        jobs = [job for job in sample.jobs if job.role in STEP_ROLES and (job.nics or job.gpus)]
        ports = {port.device: port for port in sample.ports}
        processes = () if isinstance(sample.processes, Unknown) else sample.processes
        if not isinstance(sample.processes, Unknown):
            self._end({job.id for job in jobs})
        for job in jobs:
            change = self._change_of(job, sample.taken_at)
            change.seconds += step
            change.until = sample.taken_at
            self._compare(change, _compared_nics(job, ports), step)
            self._compare(change, _compared_gpus(job, processes), step)
        for name, mark in [*((name, Mark.DOWN) for name in sample.downs), *_marks(sample.events)]:
            self._count(name, mark, jobs, sample.taken_at)
        if topology is not None:
            self._add_losses(sample, topology, step)

    def _add_losses(self, sample: LiveSample, topology: Topology, step: float) -> None:
        is_seen = not isinstance(sample.processes, Unknown)
        held = {gpu for job in sample.jobs for gpu in job.gpus} if is_seen else set()
        findings = sample.findings
        costs = self._costs.get(lambda: costs_of(findings, topology), objects=(findings, topology))
        for finding, shares in costs.items():
            for gpu, share in shares.items():
                is_held = gpu in held
                seconds = (1, is_seen, is_held, is_held and share.is_known, share.least if is_held else 0.0)
                key = int(sample.taken_at // _DAY_SECONDS), finding
                before = self._losses.get(key, (0.0,) * len(seconds))
                self._losses[key] = tuple(map(lambda was, now: was + step * now, before, seconds))

    def _end(self, ids: set[str]) -> None:
        for name in [name for name in self._running if name not in ids]:
            job = self._running.pop(name)
            if job.seconds >= LEAST_JOB_SECONDS:
                self._ended.append(job)
        del self._ended[:-_MOST_WAITING]

    def _change_of(self, job: LiveJob, at: float) -> JobChange:
        change = self._running.get(job.id)
        if change is None:
            change = self._running[job.id] = JobChange(job.id, job.name, at, at, at)
        change.name = job.name
        for name in (*job.nics, *job.gpus):
            self._part(change, name)
        return change

    def _part(self, change: JobChange, name: str) -> PartChange:
        identity = self._identities.get(name)
        return PartChange() if identity is None else change.parts.setdefault(identity.id, PartChange())

    def _compare(self, change: JobChange, compared: Mapping[str, bool], step: float) -> None:
        for name, is_slow in compared.items():
            part = self._part(change, name)
            part.compared_seconds += step
            part.slow_seconds += step if is_slow else 0.0

    def _count(self, name: str, mark: Mark, jobs: list[LiveJob], at: float) -> None:
        identity = self._identities.get(name)
        if identity is None:
            return
        day = int(at // _DAY_SECONDS), identity.id, mark
        self._days[day] = self._days.get(day, 0) + 1
        device = name.partition("/")[0]
        for job in jobs:
            if device in job.nics or name in job.gpus:
                counts = self._part(self._running[job.id], name).counts
                counts[mark] = counts.get(mark, 0) + 1

    def changes(self) -> Changes | None:
        """Return what to write; None: nothing."""
        running = [job for job in self._running.values() if job.seconds >= LEAST_JOB_SECONDS]
        jobs = (*self._ended, *running)
        if not jobs and not self._days and not self._losses:
            return None
        used = {name for job in jobs for name in job.parts} | {name for _, name, _ in self._days}
        identities = tuple(each for each in self._identities.values() if each.id in used)
        return Changes(self._taken_at, identities, jobs, dict(self._days), dict(self._losses))

    def forget(self) -> None:
        """Begin again after what `changes` returned has been written."""
        self._ended.clear()
        self._days.clear()
        self._losses.clear()
        for job in self._running.values():
            if job.seconds >= LEAST_JOB_SECONDS:
                job.since, job.parts = job.until, {name: PartChange() for name in job.parts}


def _compared_nics(job: LiveJob, ports: Mapping[str, PortSample]) -> dict[str, bool]:
    """Return whether each NIC of a job is clearly slower, by the port's name; {}: no comparison now.

    A job sends in phases: NICs are compared while most of them move data.
    """
    names = job.own_nics
    rates = {name: rates_of(ports.get(name)) for name in names}
    moving = sum(rate is not None and max(rate) >= LEAST_GBPS for rate in rates.values())
    if len(names) < LEAST or None in rates.values() or 2 * moving <= len(names):
        return {}
    slow = {odd.device for odd in job.odd if odd.aspect == "rate"}
    if job.slowest_nic is not None:
        slow.add(job.slowest_nic.device)
    return {ports[name].name: name in slow for name in names}


def _compared_gpus(job: LiveJob, processes: tuple[LiveProcess, ...]) -> dict[str, bool]:
    """Return whether the rank on each GPU is clearly slower, by BDF, where NCCL's inspector measures it."""
    pids = frozenset(job.pids)
    ranks = [
        process
        for process in processes
        if process.pid in pids and not isinstance(process.bus_gbps, Unknown) and process.gpus
    ]
    if len(ranks) < LEAST:
        return {}
    slow = None if job.slowest is None else job.slowest.pid
    return {bdf: process.pid == slow for process in ranks for bdf in process.gpus}


def _marks(events: tuple[LiveEvent, ...]) -> Iterator[tuple[str, Mark]]:
    """Yield what the warnings of a sample say about a port or a GPU."""
    for event in events:
        mark = _MARKS.get(event.kind)
        if mark is not None and event.severity is not Severity.NOTE:
            yield from ((subject, mark) for subject in (event.subject, *event.others))


@frozen
class Share:
    """How much a finding takes of what a GPU's paths to near NICs can carry: 1 is all."""

    least: float
    is_known: bool  # False: no source says how much, or not of every finding


def costs_of(findings: Iterable[Finding], topology: Topology) -> dict[str, dict[str, Share]]:
    """Return the share that each finding takes of each GPU that it concerns, by its id and the GPU's BDF.

    "" has each GPU of any finding, with the largest share.
    """
    found = {each.id: _shares(each, topology) for each in findings if costs_bandwidth(each)}
    of_gpu = grouped(row for shares in found.values() for row in shares.items())
    every = {
        gpu: Share(max(share.least for share in shares), all(share.is_known for share in shares))
        for gpu, shares in of_gpu.items()
    }
    return {**found, "": every}


def _shares(finding: Finding, topology: Topology) -> dict[str, Share]:
    gains = grouped((gain.gpu, gain) for gain in finding.gains)
    found: dict[str, Share] = {}
    for gpu in topology.gpus:
        near, own = topology.near_nics.get(gpu.id, {}), gains.get(gpu.label, [])
        now = [known(gain.now_gbps, gain.fixed_gbps) for gain in own]
        lost = sum(1.0 - gbps / gain.fixed_gbps for gbps, gain in zip(now, own, strict=True))
        if gpu.id in finding.takes:
            found[gpu.id] = Share(1.0, True)
        elif own:
            is_known = not any(isinstance(gain.now_gbps, Unknown) for gain in own)
            found[gpu.id] = Share(lost / max(len(near), len(own)), is_known)
        elif not gains and concerns(finding, topology, (gpu.id, *near)):
            found[gpu.id] = Share(0.0, False)
    return found


# What the history says about a component, as sentences.

BASIS = (
    f"A job counts if its NICs, or its ranks, could be compared for {LEAST_COMPARED_SECONDS:.0f} s. "
    f"A component is slow in it for at least {100 * LEAST_SLOW_SHARE:.0f} % of that time."
)
BASIS_OF_LOSSES = (
    "GPU-hours: GPUs that a finding concerns, while gdrtop watch saw it. In jobs: those that a job held. "
    "Lost: those in jobs, times the share that the finding takes of what their paths to near NICs can carry. "
    "A job that sends little loses less."
)
_EVENTS = {
    Mark.DOWN: "went down",
    Mark.ERRORS: "had rising errors",
    Mark.PAUSED: "was paused",
    Mark.LINE_RATE: "lost line rate",
    Mark.PCIE_LINK: "lost PCIe speed or width",
    Mark.XID: "reported an Xid",
    Mark.LOST: "fell off the bus",
    Mark.THROTTLED: "was throttled",
}


def slow_text(component: Component) -> str:
    """Return "mlx5_5 was the slow NIC in 7 of its last 9 jobs"; "" if it never was, or for too few jobs."""
    if not component.slow_share:
        return ""
    what = "had the slow rank" if component.is_gpu else "was the slow NIC"
    return f"{component.name} {what} in {component.slow_jobs} of its last {component.compared_jobs} jobs"


def events_text(counts: Mapping[str, int]) -> str:
    """Return "went down 3 times and had rising errors once"; "" for nothing."""
    known = [(text, counts.get(mark.value, 0)) for mark, text in _EVENTS.items()]
    *others, last = [f"{text} {_times(count)}" for text, count in known if count] or [""]
    return f"{', '.join(others)} and {last}" if others else last


def _times(count: int) -> str:
    return "once" if count == 1 else "twice" if count == 2 else plural(count, "time")


def day_text(seconds: float) -> str:
    """Return a day in local time: "2026-11-28"."""
    return time.strftime("%Y-%m-%d", time.localtime(seconds))


def mark_gone(history: ComponentHistory, node: Node) -> ComponentHistory:
    """Mark the components that a node no longer has; of a kind that could not be read, none."""
    kinds = {False: isinstance(node.rdma, RdmaFacts), True: isinstance(node.gpus, GpuFacts)}
    present = {identity.id for identity in identities_of(node).values()}
    marked = (
        replace(each, is_gone=kinds[each.is_gpu] and each.id not in present) for each in history.components
    )
    return replace(history, components=tuple(marked))


def past_by_device(history: ComponentHistory, node: Node) -> dict[str, str]:
    """Return what the history says about each NIC by its name and GPU by its BDF, where it says something.

    A NIC that was replaced had the same name, so components are found by what the node has now.
    """
    places = {identity.id: (place, identity) for place, identity in identities_of(node).items()}
    texts: dict[str, str] = {}
    for component in history.components:
        if component.id in places:
            place, identity = places[component.id]
            if text := _past(replace(component, name=identity.name)):
                texts.setdefault(place if identity.is_gpu else place.partition("/")[0], text)
    return texts


def _past(component: Component) -> str:
    slow, events = slow_text(component), events_text(component.counts)
    if not slow:
        return f"{component.name} {events}" if events else ""
    return f"{slow}; it {events}" if events else slow
