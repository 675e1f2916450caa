"""The rows of one test as a table; each unit stands once, in the heading."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from probes.bandwidth.tools.samples import Sample
from widgets.base.lines import Line, Run, Tone, fit

_GAP = "  "
_Cell = Callable[[Sample], str]


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 100:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"


def _latency(of: str) -> _Cell:
    return lambda sample: next((f"{one.microseconds:.2f}" for one in sample.latencies if one.of == of), "")


def _count(value: int | float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _millions(value: float | None) -> str:
    return "" if value is None else f"{value / 1e6:.3f}"


# Heading, what stands below it, and the cells it takes.
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
    """The columns of one test's table, so that its rows can be drawn as they come."""

    def __init__(self, samples: Sequence[Sample], width: int, is_latency: bool = False) -> None:
        """`samples`: those known so far; none: the columns of a test of perftest."""
        self._width = width
        if is_latency or any(one.latencies for one in samples):
            names: tuple[str, ...] = _LATENCIES
        elif any(one.bus_gbps is not None for one in samples):
            names = _COLLECTIVE
        elif any(one.variant for one in samples) or (
            samples and all(one.messages_per_second is None for one in samples)
        ):
            names = _COPIES
        else:
            names = _BANDWIDTH
        shown = [one for one in _COLUMNS if one[0] in names]
        self._is_named = names in (_COLLECTIVE, _COPIES)
        if samples:  # a column without any figure is none
            shown = [one for one in shown if any(one[1](sample) for sample in samples)]
        self._columns = shown

    def heading(self) -> Line:
        """The columns' names, with their units."""
        cells = [f"{name:>{cells}}" for name, _, cells in self._columns]
        return fit((Run(_GAP.join(["", *cells]), Tone.DIM),), self._width)

    def row(self, sample: Sample) -> Line:
        """One row."""
        cells = [f"{cell(sample):>{cells}}" for _, cell, cells in self._columns]
        runs = [Run(_GAP.join(["", *cells]))]
        name = sample.variant or sample.what
        if self._is_named and name:
            runs.append(Run(f"{_GAP}{name[:_NAMED]}", Tone.DIM))
        return fit(tuple(runs), self._width)


def draw_rows(samples: Sequence[Sample], width: int, is_latency: bool = False) -> list[Line]:
    """The heading and a row for each sample; nothing where there is none."""
    if not samples:
        return []
    table = RowTable(samples, width, is_latency)
    return [table.heading(), *(table.row(one) for one in samples)]
