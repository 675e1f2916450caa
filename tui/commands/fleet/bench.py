"""`gdrtop fleet bench`: measure bandwidth between pairs of nodes, rail by rail, or NCCL over all of them."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TextIO

from tui.command_line.arguments import add_arguments, duration, whole_number

if TYPE_CHECKING:
    from tui.bandwidth.pairs.pairs_session import Nodes

_LARGEST_RAIL = 63
_CLOSED_AT_ONCE = 32  # nodes
_RAILS = re.compile(r"\d{1,2}(?:-\d{1,2})?(?:,\d{1,2}(?:-\d{1,2})?){0,63}", re.ASCII)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_arguments(
        parser,
        {
            "--nccl": "measure all-reduce over all nodes at once, and find what makes it slow",
            "--by PROGRAM": "what starts --nccl: ssh (gdrtop, default), or nccl-tests by srun or mpirun",
            "--full": "measure every node with every other one",
            "--rails 0-3,5": "the rails (default: all)",
            "--memory": "the memory at both ends (default: both, one after the other)",
            "--seconds TIME": "duration of each test (default: 5)",
            "--both-ways": "both directions at once; report the sum",
            "--one-rail-at-a-time": "do not measure all rails of a pair at once, as training jobs use them",
            "--port N": "TCP port of rail 0; rail k uses port N+k",
            "--restart": "forget the results of an interrupted run",
            "--dry-run": "show nodes and duration; run nothing",
            "--json": "print one JSON object at the end",
            "--yes": "do not ask before the run",
        },
        rails={"type": _rails},
        by={"choices": ("ssh", "srun", "mpirun"), "default": "ssh"},
        memory={"choices": ("host", "gpu", "both"), "default": "both"},
        seconds={"type": duration(2, 600), "default": 5},
        port={"type": whole_number(1024, 65_535 - _LARGEST_RAIL, "port"), "default": 18515},
    )


def _rails(text: str) -> tuple[int, ...]:
    """Return the numbers of "0-3,5"."""
    found: set[int] = set()
    for part in text.split(",") if _RAILS.fullmatch(text) else ():
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    if not found or max(found) > _LARGEST_RAIL:
        raise argparse.ArgumentTypeError(f"{text!r} are not rails from 0 to {_LARGEST_RAIL}, such as 0-3,5")
    return tuple(sorted(found))


def demo_nodes(labels: Mapping[str, str]) -> Nodes:
    """Return simulated nodes on one network.

    `labels`: by node name, the description and faults of each, such as "hgx-h100+half-rate".
    """
    from probes.simulation.host import SimulatedHost
    from tui.bandwidth.simulated_processes import connect_simulated

    return connect_simulated(
        {name: SimulatedHost(label, seed) for seed, (name, label) in enumerate(labels.items())}
    )


def run(
    options: argparse.Namespace,
    nodes: Nodes,
    out: TextIO | None = None,
    answers: TextIO | None = None,
    unanswered: Mapping[str, str] | None = None,
) -> int:
    """Measure between the nodes, by name; return the exit status. All processes on the nodes are closed.

    `unanswered`: other nodes that were named, and why they could not be reached.
    """
    from tui.commands.fleet.bench_nccl import NcclBench
    from tui.commands.fleet.bench_run import FleetBench

    try:
        make = NcclBench if options.nccl else FleetBench
        return make(options, nodes, out or sys.stdout, answers or sys.stdin, unanswered=unanswered).run()
    finally:
        with ThreadPoolExecutor(_CLOSED_AT_ONCE) as threads:
            list(threads.map(lambda node: node[1].close(), nodes.values()))
