"""Reads the node to find out whom a test would affect, and ends a series that would now affect a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from probes.bandwidth.model.planned_series import LeftOut, Series
from probes.base.text import join_limited
from probes.facts.jobs import processes
from probes.facts.node import probe_node
from probes.host.probe_thread import start_probe
from probes.host.protocol import Host
from probes.snapshot.examination import EXAMINE_SECONDS, Examination, compute_pids, examine
from probes.snapshot.rates import Reading, read

READ_INTERVAL_SECONDS = 1.0  # between two readings of the ports
_NOT_STARTED = "not started: running jobs would have been affected"


def read_twice(host: Host, pause: Callable[[float], object]) -> tuple[Examination, Reading]:
    """Return an examination of the whole node, and an earlier reading of its ports, so that traffic shows."""
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
    return with_users(host, examination), before


def with_users(host: Host, examination: Examination) -> Examination:
    """Return the examination with new readings and processes."""
    return with_processes(host, replace(examination, reading=read(host, examination.node)))


def with_processes(host: Host, examination: Examination) -> Examination:
    """Return the examination with the current processes; unknown if reading them takes too long."""
    pids = compute_pids(examination.reading)
    running = start_probe(host, "processes", lambda: processes.probe(host, pids))
    return replace(examination, processes=running.answer(EXAMINE_SECONDS))


def abort_reason(affected: Sequence[str]) -> str:
    """Return why the next test does not start, as a sentence; "" if no job is affected."""
    return f"running jobs would now be affected: {join_limited(affected, 1)}" if affected else ""


def with_not_started(series: Series, started: int, reason: str) -> Series:
    """Return the series with the tests that were not started left out; only the first states the reason."""
    late = tuple(
        LeftOut(test.title, _NOT_STARTED if number else f"not started: {reason}")
        for number, test in enumerate(series.tests[started:])
    )
    return replace(series, left_out=(*series.left_out, *late))
