"""What the history says about a component, as sentences."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from probes.base.frozen import frozen
from probes.base.text import plural
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.node import Node
from probes.facts.rdma.devices import RdmaFacts
from probes.host.component_history import Component, ComponentHistory, JobPart, Mark
from probes.live.reliability.tally import identities_of

LAST_JOBS = 10  # that sentences are about
LEAST_JOBS = 3  # in which a component was compared; with fewer, no sentence says how often it was slow
LEAST_COMPARED_SECONDS, LEAST_SLOW_SHARE = 60.0, 0.1
BASIS = (
    f"A job counts if its NICs, or its ranks, could be compared for {LEAST_COMPARED_SECONDS:.0f} s. "
    f"A component is slow in it for at least {100 * LEAST_SLOW_SHARE:.0f} % of that time."
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


@frozen
class SlowJobs:
    """In how many of a component's last jobs it was the slow one."""

    slow: int
    compared: int  # at most LAST_JOBS

    @property
    def is_enough(self) -> bool:
        """Whether there are enough jobs to say so."""
        return self.compared >= LEAST_JOBS


def is_compared(part: JobPart) -> bool:
    """Return whether a component could be compared with the others for long enough."""
    return part.compared_seconds >= LEAST_COMPARED_SECONDS


def is_slow(part: JobPart) -> bool:
    """Return whether a component was the slow one in a job."""
    return is_compared(part) and part.slow_seconds >= LEAST_SLOW_SHARE * part.compared_seconds


def slow_jobs(component: Component) -> SlowJobs:
    """Return in how many of the last jobs a component was slow."""
    compared = [part for part in component.parts if is_compared(part)][:LAST_JOBS]
    return SlowJobs(sum(map(is_slow, compared)), len(compared))


def slow_text(component: Component) -> str:
    """Return "mlx5_5 was the slow NIC in 7 of its last 9 jobs"; "" if it never was, or for too few jobs."""
    jobs = slow_jobs(component)
    if not jobs.slow or not jobs.is_enough:
        return ""
    what = "had the slow rank" if component.is_gpu else "was the slow NIC"
    return f"{component.name} {what} in {jobs.slow} of its last {jobs.compared} jobs"


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


def stands_out(component: Component) -> bool:
    """Return whether a component was the slow one in most of its last jobs."""
    jobs = slow_jobs(component)
    return jobs.is_enough and 2 * jobs.slow > jobs.compared


def gone_from(history: ComponentHistory, node: Node) -> frozenset[str]:
    """Return the ids of the components that a node no longer has; of a kind that could not be read, none."""
    kinds = {False: isinstance(node.rdma, RdmaFacts), True: isinstance(node.gpus, GpuFacts)}
    present = {identity.id for identity in identities_of(node).values()}
    return frozenset(
        component.id
        for component in history.components
        if kinds[component.is_gpu] and component.id not in present
    )


def past_of(history: ComponentHistory, node: Node, device: str) -> str:
    """Return what the history says about a NIC by its name, or a GPU by its BDF; "" for nothing."""
    return past_by_device(history, node).get(device, "")


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
