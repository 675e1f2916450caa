"""The saved slow results of a node as part of its examination, for every command that judges it.

The results store is loaded only where there are saved results: on this machine, once a test has run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from probes.base.origin import Origin, Source
from probes.base.unknown import Unknown
from probes.facts.node import probe_node
from probes.host.protocol import Host
from probes.snapshot.condition import Condition
from probes.snapshot.examination import Examination
from probes.topology.paths import Topology, build
from tui.files.xdg import results_path

if TYPE_CHECKING:
    from probes.bandwidth.model.result import Result
    from tui.runtime.node_monitor import NodeMonitor


def saved_results(origin: Origin) -> tuple[Result, ...]:
    """Return the results of earlier runs, oldest first; none of simulated nodes, recordings and images."""
    if origin.source is not Source.LIVE or not os.path.exists(results_path()):
        return ()
    from tui.bandwidth.results_store import open_results_store

    return open_results_store(origin).results()


def slow_results_of(
    host: Host, topology: Topology, results: Iterable[Result] | None = None
) -> tuple[Condition, ...]:
    """Return the node's slow results since its boot; by default of those saved."""
    results = tuple(saved_results(host.origin) if results is None else results)
    if not results:  # nothing to import for a node that was never tested
        return ()
    from probes.bandwidth.results.slow_results import slow_results

    return slow_results(results, topology, host.origin, host.wall_clock() - host.monotonic())


def note_slow_results(monitor: NodeMonitor, host: Host) -> None:
    """Let the monitor judge the results saved so far, from its next sample on; `host`: the node itself."""
    results = saved_results(host.origin)
    topology = monitor.topology
    if topology is None:
        if not results:
            return
        topology = build(probe_node(host))
    monitor.note("bandwidth", slow_results_of(host, topology, results))


def with_slow_results(
    host: Host, examination: Examination, results: Iterable[Result] | None = None
) -> Examination:
    """Return the examination with the node's slow results since its boot, by default of those saved."""
    watched = examination.watched
    conditions = slow_results_of(host, examination.topology, results)
    if not conditions or isinstance(watched, Unknown):
        return examination
    return replace(examination, watched=replace(watched, conditions=(*watched.conditions, *conditions)))
