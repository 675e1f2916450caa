"""The rows of a test as a table; the units are in the heading."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from probes.bandwidth.model.samples import Sample
from widgets.base.lines import Line, Run, Tone, fit

_GAP = "  "
_Cell = Callable[[Sample], str]


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 100:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"


def _latency(kind: str) -> _Cell:
    def cell(sample: Sample) -> str:
        times = {latency.statistic: latency.microseconds for latency in sample.latencies}
        return f"{times[kind]:.2f}" if kind in times else ""

    return cell


def _count(value: int | float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _millions(value: float | None) -> str:
    return "" if value is None else f"{value / 1e6:.3f}"


# Heading, cell, and width.
_COLUMNS: tuple[tuple[str, _Cell, int], ...] = (
    ("bytes", lambda sample: _count(sample.size_bytes), 10),
    ("Gb/s", lambda sample: _figure(sample.gbps), 8),
    ("peak Gb/s", lambda sample: _figure(sample.peak_gbps), 9),
    ("bus Gb/s", lambda sample: _figure(sample.bus_gbps), 8),
    ("Mmsg/s", lambda sample: _millions(sample.messages_per_second), 9),
    ("time µs", lambda sample: _figure(sample.time_us), 9),
    ("min µs", _latency("min"), 7),
    ("typical µs", _latency("typical"), 10),
    ("median µs", _latency("median"), 9),
    ("avg µs", _latency("average"), 7),
    ("max µs", _latency("max"), 8),
    ("99 % µs", _latency("99 %"), 7),
    ("99.9 % µs", _latency("99.9 %"), 9),
    ("wrong", lambda sample: _count(sample.wrong), 5),
)
_BANDWIDTH = ("bytes", "Gb/s", "Mmsg/s")
_LATENCIES = ("bytes", "min µs", "typical µs", "avg µs", "max µs", "99 % µs", "99.9 % µs")
_COLLECTIVE = ("bytes", "time µs", "Gb/s", "bus Gb/s", "wrong")
_COPIES = ("bytes", "Gb/s")
_NAMED = 34


class RowTable:
    """The columns of a test's table, so that rows can be drawn as they arrive."""

    def __init__(self, samples: Sequence[Sample], width: int, is_latency: bool = False) -> None:
        """`samples` are those known so far; without any, the columns are those of perftest."""
        self._width = width
        if is_latency or any(sample.latencies for sample in samples):
            names: tuple[str, ...] = _LATENCIES
        elif any(sample.bus_gbps is not None for sample in samples):
            names = _COLLECTIVE
        elif any(sample.variant for sample in samples) or (
            samples and all(sample.messages_per_second is None for sample in samples)
        ):
            names = _COPIES
        else:
            names = _BANDWIDTH
        shown = [column for column in _COLUMNS if column[0] in names]
        self._is_named = names in (_COLLECTIVE, _COPIES)
        if samples:  # drop empty columns
            shown = [column for column in shown if any(column[1](sample) for sample in samples)]
        self._columns = shown

    def heading(self) -> Line:
        """Return the names of the columns, with their units."""
        cells = [f"{name:>{cells}}" for name, _, cells in self._columns]
        return fit((Run(_GAP.join(["", *cells]), Tone.DIM),), self._width)

    def row(self, sample: Sample) -> Line:
        """Return the row of a sample."""
        cells = [f"{cell(sample):>{cells}}" for _, cell, cells in self._columns]
        runs = [Run(_GAP.join(["", *cells]))]
        name = sample.variant or sample.what
        if self._is_named and name:
            runs.append(Run(f"{_GAP}{name[:_NAMED]}", Tone.DIM))
        return fit(tuple(runs), self._width)


def draw_rows(
    samples: Sequence[Sample], width: int, is_latency: bool = False, newest: int | None = None
) -> list[Line]:
    """Return the heading and a row per sample, or of the newest ones only; nothing if there is none."""
    if not samples:
        return []
    table = RowTable(samples, width, is_latency)
    first = 0 if newest is None else max(0, len(samples) - newest)
    return [table.heading(), *(table.row(sample) for sample in islice(samples, first, None))]
