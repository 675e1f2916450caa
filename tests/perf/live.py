"""The live view: its screen, a sample on a crowded node, and the simulated node's part."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.perf.table import GDRTOP, NODE, best, row, running_cost, slowness
from tests.perf.terminal import dashboard
from tests.support.crowded_node import add_processes


def bench_live() -> None:
    """The Live screen; and a live sample on a node with 5,000 processes against one with none besides."""
    from probes.facts.node import probe_node
    from probes.live.live_sampler import LiveSampler
    from probes.simulation.host import SimulatedHost
    from probes.snapshot.rates import read
    from tests.support.pilot import SteppedClock

    ours = running_cost(dashboard(GDRTOP), b"t")
    cpu = 100 * ours.cpu_seconds / ours.seconds
    normal = cpu / slowness()
    text = f"{cpu:.2f} %, {normal:.2f} at full speed"
    row("Live screen, CPU of one core, 1 Hz", text, "2 %", normal <= 2)

    def a_sample(processes: int) -> float:
        """CPU seconds of one sample, readings included."""
        clock = SteppedClock()
        host = SimulatedHost(NODE, clock=clock)
        add_processes(host.tree, processes)
        node, sampler = probe_node(host), LiveSampler()
        for _ in range(30):
            clock.now += 1.0
            sampler.sample(host, node, read(host, node, with_interfaces=True))
        began = time.process_time()
        for _ in range(100):
            clock.now += 1.0
            sampler.sample(host, node, read(host, node, with_interfaces=True))
        return (time.process_time() - began) / 100

    few, many = best(lambda: a_sample(0), 3), best(lambda: a_sample(5000), 3)
    row(
        "live sample, 5,000 processes",
        f"{many * 1e3:.1f} ms CPU, without them {few * 1e3:.1f} ms: × {many / few:.2f}",
        "× 1.2",
        many / few <= 1.2,
    )


_EMPTY_CALLS = 10_000


class TimedHost:
    """A simulated node that counts the CPU seconds of its answers, which are not gdrtop's."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self.seconds = self._overhead = 0.0
        # What counting itself costs is not gdrtop's either.
        empty = self._timed(lambda: None)
        began = time.thread_time()
        for _ in range(_EMPTY_CALLS):
            empty()
        self._overhead = max(0.0, time.thread_time() - began - self.seconds) / _EMPTY_CALLS
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        answer = getattr(self._host, name)
        if not callable(answer):
            return answer
        timed = self._timed(answer)
        setattr(self, name, timed)
        return timed

    def _timed(self, answer: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return answer(*arguments, **options)
            finally:
                self.seconds += time.thread_time() - began + self._overhead

        return timed


def bench_sampling() -> None:
    """CPU of the readings of one second, without drawing: gdrtop's own part, and the simulated node's."""
    from probes.live.live_sampler import LiveSampler
    from probes.simulation.host import SimulatedHost
    from probes.snapshot.node_reader import NodeReader
    from tests.support.pilot import SteppedClock

    def a_second() -> tuple[float, float]:
        clock = SteppedClock()
        host: Any = TimedHost(SimulatedHost(NODE, clock=clock))
        reader, live = NodeReader(host), LiveSampler()
        node = reader.probe()
        assert node is not None
        count = 100

        def step() -> None:
            clock.now += 1.0
            reader.probe()
            live.sample(host, node, reader.read())

        for _ in range(30):
            step()
        host.seconds, began = 0.0, time.process_time()
        for _ in range(count):
            step()
        return (time.process_time() - began) / count, host.seconds / count

    both, simulated = min(a_second() for _ in range(3))
    own = both - simulated
    normal = own / slowness()
    text = f"{own * 1e3:.1f} ms CPU, {normal * 1e3:.1f} at full speed; the node {simulated * 1e3:.1f} ms"
    row("readings of one second, without drawing", text, "2 ms of gdrtop's own", normal <= 2e-3)
