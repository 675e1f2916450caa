"""Reads the node to find out whom a test would affect; ports are read twice, so that traffic shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from probes.facts.jobs import processes
from probes.facts.node import probe_node
from probes.host.probe_thread import start_probe
from probes.host.protocol import Host
from probes.snapshot.examination import EXAMINE_SECONDS, Examination, compute_pids, examine
from probes.snapshot.rates import Reading, read

READ_INTERVAL_SECONDS = 1.0  # between two readings of the ports


def read_twice(host: Host, pause: Callable[[float], object]) -> tuple[Examination, Reading]:
    """Return an examination of the whole node, and an earlier reading of its ports."""
    before = read(host, probe_node(host))
    pause(READ_INTERVAL_SECONDS)
    return examine(host), before


def reread(
    host: Host, examination: Examination, pause: Callable[[float], object]
) -> tuple[Examination, Reading]:
    """Return the examination with new readings and processes, and an earlier reading of the ports.

    What cannot change within minutes is not read again.
    """
    before = read(host, examination.node)
    pause(READ_INTERVAL_SECONDS)
    return with_processes(host, replace(examination, reading=read(host, examination.node))), before


def with_processes(host: Host, examination: Examination) -> Examination:
    """Return the examination with the current processes; unknown if reading them takes too long."""
    pids = compute_pids(examination.reading)
    running = start_probe(host, "processes", lambda: processes.probe(host, pids))
    return replace(examination, processes=running.answer(EXAMINE_SECONDS))
