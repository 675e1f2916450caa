"""Samples of nodes that run one job together, eight ranks on each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from probes.base.unknown import Maybe
from probes.fleet.job import JobWatch
from probes.fleet.job_model import ClockOffset, FleetJob, NodeSample
from probes.fleet.rails import Rail
from probes.live.model.sample import LiveProcess, LiveSample
from probes.simulation.host import SimulatedHost
from tests.support.live_samples import a_job, a_port, a_process, a_sample

RAILS = tuple(
    Rail(n, f"mlx5_{n}", 1, None, f"GPU{n}", f"0000:{n:02x}:00.0", "InfiniBand", "", is_active=True)
    for n in range(8)
)
EXACT = ClockOffset(0.0, 0.001)
NODES = ("gpu1", "gpu2", "gpu3", "gpu4")
Rate = Callable[[str, int, float], Maybe[float]]  # of a node, a port's number and a moment


class HungHost(SimulatedHost):
    """A node on which a question hangs until the test lets it go on."""

    def __init__(self, released: threading.Event) -> None:
        super().__init__("hgx-h100", clock=lambda: 5000.0)
        self.released = released

    def wall_clock(self) -> float:
        self.released.wait(60)
        return super().wall_clock()


def full_rate(node: str, port: int, at: float) -> float:
    return 370.0


def ranks_of(node: str, nodes: Sequence[str] = NODES) -> tuple[LiveProcess, ...]:
    first = 8 * nodes.index(node)
    world = 8 * len(nodes)
    return tuple(replace(a_process(gpu), rank=first + gpu, world_size=world) for gpu in range(8))


def a_node(
    node: str, at: float, rate: Rate = full_rate, nodes: Sequence[str] = NODES, **parts: Any
) -> NodeSample:
    """Return a node's sample; `parts`: of the sample, and the node's clock."""
    clock = parts.pop("clock", EXACT)
    ports = tuple(a_port(number, rate(node, number, at)) for number in range(8))
    job = replace(
        a_job(), id="slurm:4711", name="train.py (alice, Slurm job 4711)", world_size=8 * len(nodes)
    )
    values = {"processes": ranks_of(node, nodes), "jobs": (job,), "ports": ports, **parts}
    return NodeSample(a_sample(at, **values), RAILS, clock)


def watched(
    seconds: int = 12,
    rate: Rate = full_rate,
    nodes: Sequence[str] = NODES,
    parts: Mapping[str, Mapping[str, Any]] | None = None,
    wanted: str = "4711",
) -> FleetJob:
    """Return the job after some seconds; `parts`: of single nodes."""
    *_, last = watch(seconds, rate, nodes, parts, wanted)
    return last


def watch(
    seconds: int,
    rate: Rate = full_rate,
    nodes: Sequence[str] = NODES,
    parts: Mapping[str, Mapping[str, Any]] | None = None,
    wanted: str = "4711",
) -> Iterator[FleetJob]:
    job = JobWatch(wanted)
    for second in range(seconds):
        at = float(second)
        yield job.add(
            at, {name: a_node(name, at, rate, nodes, **(parts or {}).get(name, {})) for name in nodes}, {}
        )


def sentences(job: FleetJob) -> list[str]:
    return [difference.sentence for difference in job.differences]


def changed(node: str, number: int, **fields: Any) -> dict[str, dict[str, Any]]:
    """Return the parts of a node one of whose ranks differs."""
    ranks = list(ranks_of(node))
    ranks[number] = replace(ranks[number], **fields)
    return {node: {"processes": tuple(ranks)}}


def no_job(sample: LiveSample) -> LiveSample:
    return replace(sample, processes=(), jobs=())
