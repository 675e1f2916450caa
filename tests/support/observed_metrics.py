"""The metrics of simulated nodes, as gdrtop metrics reads them."""

from collections.abc import Mapping
from functools import cache

from probes.metrics import metric_list
from probes.metrics.metric_list import Family
from probes.simulation.host import SimulatedHost
from tests.support.pilot import SteppedClock
from tui.commands.metrics.reading import MetricsReader

METRICS = (*metric_list.METRICS.values(), *metric_list.PORT_EVENTS.values())
Samples = Mapping[frozenset[tuple[str, str]], float]


def reader_of(host: SimulatedHost, clock: SteppedClock, with_bytes: bool = False) -> MetricsReader:
    def wait(seconds: float) -> None:
        clock.now += seconds

    return MetricsReader(host, with_bytes, wait)


@cache
def families_of(name: str, seconds: float = 0.0, with_bytes: bool = False) -> tuple[Family, ...]:
    """The metrics of a node that has been simulated for some seconds."""
    clock = SteppedClock()
    host = SimulatedHost(name, clock=clock)
    clock.now += seconds
    return reader_of(host, clock, with_bytes).read()


def values(families: tuple[Family, ...], metric: str, *names: str) -> dict[tuple[str, ...], float]:
    """The values of a metric by the labels named."""
    return {
        tuple(sample.labels.get(name, "") for name in names): sample.value
        for family in families
        if family.metric.name == metric
        for sample in family.samples
    }
