"""Summaries of simulated nodes; each is examined once for all tests."""

from dataclasses import replace
from functools import cache

from probes.checks.judgment import judge
from probes.fleet.summary import NodeSummary, summarize
from probes.fleet.traits import Trait
from probes.live.job_examination import examine_with_jobs
from probes.simulation.host import SimulatedHost


@cache
def simulated(label: str = "hgx-h100") -> NodeSummary:
    examination = examine_with_jobs(SimulatedHost(label))
    return summarize(examination, judge(examination))


def node(name: str, label: str = "hgx-h100") -> NodeSummary:
    return replace(simulated(label), name=name)


def nodes(count: int, label: str = "hgx-h100", begin: str = "gpu") -> list[NodeSummary]:
    return [node(f"{begin}{number:03d}", label) for number in range(1, count + 1)]


def with_value(summary: NodeSummary, fact: str, value: object, device: str = "") -> NodeSummary:
    """The node with another value of a fact, of one device or of all."""
    return replace(
        summary,
        traits=tuple(
            Trait(found.fact, value, found.slot, found.device)  # type: ignore[arg-type]
            if found.fact == fact and device in ("", found.device)
            else found
            for found in summary.traits
        ),
    )
