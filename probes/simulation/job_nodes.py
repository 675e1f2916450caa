"""Simulated nodes that run one training job together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from probes.simulation.host import SimulatedHost
from probes.simulation.node.jobs.traffic import common_steps, scale_job
from probes.simulation.node.model.description import describe

# With this between the seeds of two nodes, their jobs have the same phases, and a fault hits the same rank.
_SEEDS_APART = 7 * 8


def job_nodes(
    name: str,
    count: int,
    faults: Mapping[int, str] | None = None,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, SimulatedHost]:
    """Return nodes of the kind `name` by host name, gpu001 and so on, with the ranks of one job.

    `faults`: by the number of a node, as after the "+" of `--demo`. What such a fault does to the traffic of
    all NICs of its node, it does to the whole job.
    """
    wanted = faults or {}
    nodes: dict[str, SimulatedHost] = {}
    for number in range(count):
        host_name = f"gpu{number + 1:03}"
        description = replace(describe(name), hostname=host_name, job_nodes=count, job_node=number)
        label = f"{name}+{wanted[number]}" if wanted.get(number) else name
        nodes[host_name] = SimulatedHost(label, seed + number * _SEEDS_APART, clock, description)
    hosts = list(nodes.values())
    for number in wanted:
        for steps in common_steps(hosts[number].tree):
            for other, host in enumerate(hosts):
                if other not in wanted:
                    scale_job(host.tree, steps)
    return nodes
