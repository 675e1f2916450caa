"""Tables: the rows of a test, and the matrix of a sweep with GPUs by NICs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

from probes.bandwidth.model.result import Ending, Result, is_as_requested
from probes.bandwidth.model.samples import Sample
from probes.bandwidth.results.against_earlier import latency_us
from widgets.bandwidth.result import mark_of
from widgets.base.figures import UNKNOWN_MARK
from widgets.base.lines import Line, Run, Tone, fit, wrapped
from widgets.node.matrix import column_headings

_GAP = "  "
_Cell = Callable[[Sample], str]
_NOT_MEASURED = Run("·", Tone.DIM)
_HOST = "host"


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
    ("p99 µs", _latency("99 %"), 7),
    ("p99.9 µs", _latency("99.9 %"), 9),
    ("wrong", lambda sample: _count(sample.wrong), 5),
)
_BANDWIDTH = ("bytes", "Gb/s", "Mmsg/s")
_LATENCIES = ("bytes", "min µs", "typical µs", "avg µs", "max µs", "p99 µs", "p99.9 µs")
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


def draw_matrix(
    results: Sequence[Result], width: int, gpus: Sequence[str] = (), nics: Sequence[str] = ()
) -> list[Line]:
    """Return one table per kind of memory, with GPUs as rows and NICs as columns.

    `gpus` (labels) and `nics` also name those that were not measured. Columns that do not fit go below.
    """
    of_pairs = [result for result in results if result.pair.nic]
    if not of_pairs:
        return wrapped("No GPU–NIC pair was measured.", width, Tone.DIM)
    memories = list(dict.fromkeys(result.memory for result in of_pairs))
    columns = list(dict.fromkeys((*nics, *(result.pair.nic for result in of_pairs))))
    lines: list[Line] = []
    for memory in memories:
        cells = {
            (result.pair.gpu_label or _HOST, result.pair.nic): result
            for result in of_pairs
            if result.memory == memory
        }
        labels = [label for label, _ in cells]
        rows = list(dict.fromkeys((*(gpus if _HOST not in labels else ()), *labels)))
        if lines:
            lines.append(())
        is_latency = all(result.gbps is None and result.figure is not None for result in cells.values())
        lines.append((Run(f"{memory}   {'µs' if is_latency else 'Gb/s'}", Tone.TITLE),))
        lines += draw_grid(rows, columns, width, partial(_cell_of, cells))
    return [*lines, *wrapped(_legend(of_pairs), width, Tone.DIM)]


def draw_grid(
    rows: Sequence[str], columns: Sequence[str], width: int, cell_of: Callable[[str, str, int], Run]
) -> list[Line]:
    """Return a table of GPUs by NICs; `cell_of` draws a cell of a GPU, a NIC and a width.

    Columns that do not fit go below.
    """
    prefix, headings = column_headings(columns)
    label = max(len(prefix), *(len(row) for row in rows))
    cell = max(6, max(len(heading) for heading in headings) + 1)
    per_block = max(1, (width - label) // cell)
    lines: list[Line] = []
    for start in range(0, len(columns), per_block):
        if lines:
            lines.append(())
        block = list(zip(columns, headings, strict=True))[start : start + per_block]
        lines.append(
            (Run(f"{prefix:<{label}}", Tone.DIM), *(Run(f"{head:>{cell}}", Tone.TITLE) for _, head in block))
        )
        for row in rows:
            cells = [cell_of(row, nic, cell) for nic, _ in block]
            lines.append((Run(f"{row:<{label}}", Tone.TITLE), *cells))
    return lines


def _cell_of(results: dict[tuple[str, str], Result], row: str, nic: str, cells: int) -> Run:
    result = results.get((row, nic))
    if result is None:
        return _NOT_MEASURED._replace(text=f"{_NOT_MEASURED.text:>{cells}}")
    mark = mark_of(result)
    if result.ending is Ending.FAILED or result.figure is None:
        return mark._replace(text=f"{mark.text:>{cells}}")
    # Not by color alone: a low figure has a mark too.
    suffix = mark.text if result.ending is Ending.CANCELED or mark.text == "▲" else ""
    us = latency_us(result.figure)
    latency = UNKNOWN_MARK if us is None else f"{us:.1f}"
    figure = latency if result.gbps is None else f"{result.gbps:.{0 if result.gbps >= 10 else 1}f}"
    return mark._replace(text=f"{figure + suffix:>{cells}}")


def _legend(results: Sequence[Result]) -> str:
    legend = ["· not measured"]
    if any(result.judgment.is_slow for result in results):
        legend.append("▲ below the limit of the path")
    if not all(map(is_as_requested, results)):
        legend.append("▲ not the requested memory")
    if any(result.ending is Ending.FAILED for result in results):
        legend.append("✗ failed")
    if any(result.ending is Ending.CANCELED for result in results):
        legend.append("■ canceled")
    limits = sorted({result.limit_gbps for result in results if result.limit_gbps is not None})
    if limits:
        legend.append(f"at most {' or '.join(f'{limit:.0f}' for limit in limits)} Gb/s")
    return "   ".join(legend)
