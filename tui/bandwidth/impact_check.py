"""Looks at the node for who would feel a test: ports are read twice, so that what flows shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from probes.facts.jobs import processes
from probes.facts.node import probe_node
from probes.host.probe_thread import start_probe
from probes.host.protocol import Host
from probes.snapshot.examination import EXAMINE_SECONDS, Examination, compute_pids, examine
from probes.snapshot.rates import Reading, read

WATCH_SECONDS = 1.0  # between two readings of the ports


def read_twice(host: Host, pause: Callable[[float], object]) -> tuple[Examination, Reading]:
    """All of the node, and a reading some time before."""
    before = read(host, probe_node(host))
    pause(WATCH_SECONDS)
    return examine(host), before


def reread(
    host: Host, examination: Examination, pause: Callable[[float], object]
) -> tuple[Examination, Reading]:
    """The same node at a later moment, and a reading some time before; what cannot change so soon is kept."""
    before = read(host, examination.node)
    pause(WATCH_SECONDS)
    return with_processes(host, replace(examination, reading=read(host, examination.node))), before


def with_processes(host: Host, examination: Examination) -> Examination:
    """With the processes as they are now; unknown where they cannot be read within seconds."""
    pids = compute_pids(examination.reading)
    running = start_probe(host, "processes", lambda: processes.probe(host, pids))
    return replace(examination, processes=running.answer(EXAMINE_SECONDS))
