"""Nodes that are far bigger than usual: topologies, PCI functions, and readings for hours."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.perf.command import NotMeasured
from tests.perf.table import SECONDS, row, slowness
from tests.perf.terminal import Terminal, dashboard
from tests.support.crowded_node import crowded_node

_SAMPLES = 20_000
_LONG_SAMPLES = 144_000  # four hours at 0.1 s
_PARTS = 4
_SETTLE_SECONDS = 25.0  # after 16 samples, the timeline knows how many samples of an hour it may keep
_KEYS = 5
_PANELS = 8
_REVERSE = re.compile(rb"\x1b\[(\d+;)*7[;m]")  # the selected name


def cpu_seconds(work: Callable[[], object], times: int) -> list[float]:
    """Return the CPU seconds of each of several runs."""
    found = []
    for _ in range(times):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return found


def crowded_host(gpus: int, nics: int, functions: int = 0) -> Any:
    """Return a simulated node of that size, whose clock the caller advances."""
    from probes.simulation.host import SimulatedHost
    from tests.support.pilot import SteppedClock

    return SimulatedHost("crowded", clock=SteppedClock(), description=crowded_node(gpus, nics, functions))


def bench_topologies() -> None:
    """Building the topology, and the readings of one second, by GPUs × NICs."""
    from probes.facts.node import probe_node
    from probes.snapshot.rates import read
    from probes.snapshot.verdict import assess
    from probes.topology.paths import build

    for gpus, nics, budget in ((8, 10, 0.0), (64, 64, 0.1), (8, 256, 0.1), (256, 256, 2.0)):
        host = crowded_host(gpus, nics)
        node = probe_node(host, 30.0)
        values = cpu_seconds(lambda node=node: build(node), 3)  # type: ignore[misc]
        what, text = f"topology of {gpus} × {nics}", f"{min(values) * 1e3:.1f} ms CPU"
        row(what, text, f"{budget * 1e3:.0f} ms" if budget else "", min(values) <= budget or None, values)
        topology, reading = build(node), read(host, node)
        assert (len(topology.gpus), len(topology.nics)) == (gpus, nics)
        assess(node, topology, reading)
        values = cpu_seconds(lambda: assess(node, topology, reading), 5)  # noqa: B023 - called at once
        row(f"verdict of {gpus} × {nics}", f"{min(values) * 1e3:.1f} ms CPU a second", "", None, values)


# GPUs, NICs, and options of tests/perf/crowded_app.py.
_CROWDED = (
    ("64", "64"),
    ("8", "256"),
    ("256", "256"),
    ("8", "10", "--functions", "10240", "--processes", "5000"),
)


def bench_crowded_dashboard() -> None:
    """The dashboard on big nodes with a rank on every GPU: its first figures, 1 Hz, and a key."""
    for arguments in _CROWDED:
        with tempfile.TemporaryDirectory() as directory:
            _dashboard_on(arguments, Path(directory) / "seconds")


def _dashboard_on(arguments: Sequence[str], file: Path) -> None:
    program = [sys.executable, "-m", "tests.perf.crowded_app", *arguments, "--seconds-file", str(file)]
    what = " × ".join(arguments[:2]) + (", 10,240 functions, 5,000 processes" if arguments[2:] else "")
    terminal = Terminal(dashboard(program, "GPU1"))
    try:
        first = terminal.wait_for(terminal.command.output)
        until_then = _simulated_seconds(terminal, file)
        terminal.read_for(_SETTLE_SECONDS)
        before = _simulated_seconds(terminal, file)
        cost = terminal.cost_over(SECONDS)
        simulated = 100 * (_simulated_seconds(terminal, file) - before) / cost.seconds
        _focus_long_list(terminal)
        key = min(_key_seconds(terminal) for _ in range(_KEYS))
        terminal.require_running()
    finally:
        terminal.close()
    own = 100 * cost.cpu_seconds / cost.seconds - simulated
    normal = (first - until_then) / slowness()
    text = f"{first:.2f} s, of it {until_then:.2f} s CPU of the simulated node; {normal:.2f} at full speed"
    row(f"first figures, {what}", text, "2 s", normal <= 2, [first - until_then])
    normal = own / slowness()
    text = f"{own:.1f} %, {normal:.1f} at full speed; the simulated node {simulated:.1f} %"
    row(f"CPU at 1 Hz, {what}", text, "5 %", normal <= 5, [own])
    row(f"a key, {what}", f"{key * 1e3:.0f} ms", "100 ms", key <= 0.1)


def _simulated_seconds(terminal: Terminal, file: Path) -> float:
    """Return the CPU seconds of the simulated node's answers so far."""
    file.unlink(missing_ok=True)
    terminal.require_running()
    os.kill(terminal.pid, signal.SIGUSR1)
    for _ in range(100):
        terminal.read_for(0.05)
        if file.exists() and (text := file.read_text()).endswith("\n"):
            return float(text)
    raise NotMeasured("the dashboard did not write its seconds")


def _focus_long_list(terminal: Terminal) -> None:
    """Focus a panel whose selection an arrow key moves: a single finding has the focus at first."""
    for _ in range(_PANELS):
        try:
            _key_seconds(terminal, limit=2)
            return
        except NotMeasured:
            terminal.send(b"\t")


def _key_seconds(terminal: Terminal, limit: float = 10) -> float:
    """Return how long it takes until an arrow key has moved the selection."""
    terminal.read_for(0.7)  # not always at the same time of a second
    terminal.text = b""
    began = time.perf_counter()
    terminal.send(b"\x1b[B")
    while not _REVERSE.search(terminal.text):
        terminal.read_for(0.005)
        if time.perf_counter() - began > limit:
            raise NotMeasured("the selection did not move")
    return time.perf_counter() - began


def bench_pci() -> None:
    """A probe of 10,000 PCI functions against one of 517, per function."""
    from probes.facts.pci import functions as pci

    def seconds_each(functions: int) -> list[float]:
        host = crowded_host(8, 10, functions)
        found = pci.probe(host)
        assert isinstance(found, pci.PciFacts)
        assert len(found.functions) >= functions
        return [seconds / functions for seconds in cpu_seconds(lambda: pci.probe(host), 3)]

    few, many = seconds_each(512), seconds_each(10_240)
    ratio = min(many) / min(few)
    row("10,240 PCI functions, each", f"× {ratio:.2f} of one of 512", "× 1.5", ratio <= 1.5, many)


def bench_hours() -> None:
    """Memory over many live samples, run as fast as they go: the last half against the first.

    GDRTOP_LONG=1 in the environment takes seven times as many.
    """
    from probes.live.live_sampler import LiveSampler
    from probes.snapshot.node_reader import NodeReader

    host = crowded_host(8, 10)
    reader, live, process = NodeReader(host), LiveSampler(), psutil.Process()
    node = reader.probe()
    assert node is not None
    samples = _LONG_SAMPLES if os.environ.get("GDRTOP_LONG") else _SAMPLES
    sizes = []
    for _ in range(_PARTS):
        for _ in range(samples // _PARTS):
            host._clock.now += 0.1
            live.sample(host, node, reader.read())
        sizes.append(process.memory_info().rss / 1e6)
    grown = sizes[-1] - sizes[1]
    after = ", ".join(f"{size:.0f}" for size in sizes)
    text = f"{after} MB by quarters: {grown:+.1f} MB in the last half"
    row(f"memory, {samples:,} samples at 0.1 s", text, "+2 MB", grown <= 2)
