"""Every metric that gdrtop exports: its name, its type and what it means.

Base units, "_total" for counters. Labels that mean the same as node_exporter's (device, port) and
dcgm-exporter's (gpu, pci_bus_id) have the same values, so that both can be joined. None has a pid, a job or
a command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from probes.base.data_files import read_toml
from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown

# Metrics as data: a name, what it means, and samples with labels.

MOST_SAMPLES = 2000  # of one metric
_MOST_CHARACTERS = 128  # of a label's value

Labels = Mapping[str, str]


class Kind(Enum):
    """The types of metrics, by Prometheus' names."""

    GAUGE = "gauge"
    COUNTER = "counter"


@frozen
class Metric:
    """One metric. `base` is its name without the "_total" of a counter."""

    base: str
    help: str  # one sentence
    kind: Kind = Kind.GAUGE

    @property
    def name(self) -> str:
        """The name by which queries ask for it."""
        return f"{self.base}_total" if self.kind is Kind.COUNTER else self.base


@frozen
class Sample:
    """One value of a metric."""

    labels: Labels
    value: float


@frozen
class Family:
    """A metric and its samples, each with labels of its own."""

    metric: Metric
    samples: tuple[Sample, ...]
    unknown: int = 0  # values that should be there and could not be read
    omitted: int = 0  # samples beyond MOST_SAMPLES, and those with the labels of another one


def family(metric: Metric, values: Iterable[tuple[Labels, Maybe[float]]]) -> Family:
    """Return the samples of a metric: those with a known value.

    NOT_THERE means that the node has no such value. Every other reason is counted as unknown. Prometheus
    rejects a whole scrape if two samples have the same labels, so only the first of them stays.
    """
    samples: dict[tuple[tuple[str, str], ...], Sample] = {}
    unknown = omitted = 0
    for labels, value in values:
        if isinstance(value, Unknown):
            unknown += value.reason is not Reason.NOT_THERE
            continue
        cleaned = {name: text for name, raw in labels.items() if (text := printable(raw, _MOST_CHARACTERS))}
        key = tuple(cleaned.items())
        if key in samples or len(samples) >= MOST_SAMPLES:
            omitted += 1
        else:
            samples[key] = Sample(cleaned, value)
    return Family(metric, tuple(samples.values()), unknown, omitted)


_LISTED = read_toml(__package__, "metrics.toml")
METRICS = {base: Metric(base, text, kind) for kind in Kind for base, text in _LISTED[kind.value].items()}
"""All metrics but those of port events, by the name without "_total"."""
PORT_EVENTS = {name: Metric(base, text, Kind.COUNTER) for name, (base, text) in _LISTED["port_event"].items()}
"""The kernel's name of a counter → its metric."""
