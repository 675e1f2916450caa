"""The chart of a test: its curves as bars or letters in a grid, the limits as lines, and the axes.

Drawn with `Line`s: a plotting library repaints its whole area for each row, but the dashboard sends only the
cells that have changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from itertools import pairwise

from rich.cells import cell_len

from probes.bandwidth.model.limits import Bound, Limit
from probes.bandwidth.model.samples import Sample
from probes.bandwidth.results.against_earlier import latency_us
from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.text import binary_size
from probes.base.unknown import Unknown
from widgets.base.figures import BLOCKS, short
from widgets.base.lines import Line, Run, Tone, fit, wrapped

LETTERS = "ABCDEFGH"
_GUTTER = 6  # "  400┤"
_LEAST_WIDTH, _LEAST_HEIGHT = 24, 5
_FAR = 1.5  # a limit beyond this multiple of the least is named, but not drawn
_HEADROOM = 1.08


class XAxis(Enum):
    """What the x axis of a chart shows."""

    SIZE = "message size"
    TIME = "time"
    NAME = "transfer"


@frozen
class Curve:
    """The rows of one test."""

    name: str
    points: tuple[tuple[float, float], ...]  # (bytes, or number of the row), Gb/s or µs
    tone: Tone = Tone.GOOD
    labels: tuple[str, ...] = ()  # one per point, only with XAxis.NAME


def is_latency(samples: Sequence[Sample]) -> bool:
    """Return whether the samples have latencies and no bandwidth."""
    has_bandwidth = any(sample.gbps is not None for sample in samples)
    return not has_bandwidth and any(sample.latencies for sample in samples)


def y_value(sample: Sample) -> float | None:
    """Return Gb/s, of a collective its bus bandwidth; else the typical latency in µs; None if unknown."""
    figures = (sample.bus_gbps, sample.gbps, latency_us(sample))
    value = next((figure for figure in figures if figure is not None), None)
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def x_axis_of(samples: Sequence[Sample], is_endless: bool) -> XAxis:
    """Return what the samples differ in."""
    if is_endless:
        return XAxis.TIME
    sizes = {sample.size_bytes for sample in samples if sample.size_bytes is not None}
    names = set(map(_name_of, samples))
    return XAxis.NAME if not sizes or (len(sizes) == 1 and len(names) > 1) else XAxis.SIZE


def _name_of(sample: Sample) -> str:
    return f"{sample.what} {sample.variant}".rstrip()


def curve_of(
    name: str, samples: Sequence[Sample], x_axis: XAxis, tone: Tone = Tone.GOOD, first: int = 1
) -> Curve:
    """Return the curve of a test; rows without a figure are left out.

    `first` is the number of the first row, because only the newest rows of a long test are kept. By size,
    only rows of the first variant count: nccl-tests measures each size out of place and in place.
    """
    points: list[tuple[float, float]] = []
    labels: list[str] = []
    variant = next((sample.variant for sample in samples if sample.size_bytes is not None), "")
    for number, sample in enumerate(samples, first):
        if (value := y_value(sample)) is None:
            continue
        if x_axis is XAxis.SIZE:
            if not sample.size_bytes or sample.variant != variant:
                continue
            points.append((float(sample.size_bytes), value))
        else:
            points.append((float(number), value))
        labels.append(_name_of(sample))
    return Curve(name, tuple(points), tone, tuple(labels) if x_axis is XAxis.NAME else ())


def draw_chart(
    curves: Sequence[Curve],
    limit: Limit | None,
    width: int,
    height: int,
    x_axis: XAxis = XAxis.TIME,
    unit: str = "Gb/s",
    directions: int = 1,
    span: tuple[float, float] | None = None,
) -> list[Line]:
    """Return at most `height` lines; `directions` is 2 if both directions are added up.

    `span` is the range of sizes or rows that the test will have, so that the axis does not change meanwhile.
    """
    marks = _marks(limit if unit == "Gb/s" else None, directions)
    if height < _LEAST_HEIGHT or width < _LEAST_WIDTH:
        return wrapped("Not enough room for a chart.", width, Tone.DIM)[: max(0, height)]
    if x_axis is XAxis.NAME:
        return _bars(curves, marks, width, height, unit)
    return _Plot(curves, marks, width, height, x_axis, unit, span).lines()


# Limits


@frozen
class _Mark:
    """Limits with the same value."""

    value: float
    names: tuple[str, ...]
    is_least: bool

    @property
    def label(self) -> str:
        return f"{_joined(self.names)} {short(self.value)}"


def _joined(names: Sequence[str]) -> str:
    """Join names, with a common start only once: "PCIe link of mlx5_0, of GPU0"."""
    texts = list(names[:1])
    for before, name in pairwise(names):
        head = before.rpartition(" of ")[0]
        texts.append(name.removeprefix(f"{head} ") if head and name.startswith(f"{head} of ") else name)
    return ", ".join(texts)


def _marks(limit: Limit | None, directions: int) -> list[_Mark]:
    least = None if limit is None else limit.least
    bounds: dict[float, list[Bound]] = {}
    for bound in limit.bounds if limit is not None else ():
        if not isinstance(bound.nominal_gbps, Unknown) and bound.nominal_gbps > 0:
            bounds.setdefault(round(bound.nominal_gbps * directions, 1), []).append(bound)
    return [
        _Mark(value, tuple(dict.fromkeys(bound.name for bound in equal)), least in equal)
        for value, equal in sorted(bounds.items())
    ]


def _limit_runs(marks: Sequence[_Mark], unit: str) -> list[Run]:
    least = next((mark for mark in marks if mark.is_least), None)
    if least is None:
        return []
    return [
        Run(" · at most "),
        Run(f"{short(least.value)} {unit}", Tone.TITLE),
        Run(f": {_joined(least.names)}"),
    ]


# Bars by name


def _bars(curves: Sequence[Curve], marks: list[_Mark], width: int, height: int, unit: str) -> list[Line]:
    rows = [
        (label, point[1], curve.tone)
        for curve in curves
        for label, point in zip(curve.labels, curve.points, strict=True)
    ]
    head: Line = (Run(unit, Tone.DIM), *_limit_runs(marks, unit))
    if not rows:
        return [fit(head, width), *wrapped("No result yet.", width, Tone.DIM)]
    names = min(max(cell_len(label) for label, _, _ in rows), width // 2)
    top = max([value for _, value, _ in rows] + [mark.value for mark in marks if mark.is_least])
    room = width - names - 8
    lines: list[Line] = [head]
    for label, value, tone in rows[-(height - 1) :]:
        eighths = round(min(1.0, value / top if top else 0.0) * room * 8)
        bar = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].rstrip()
        lines.append((*fit((Run(label),), names), Run(f"{short(value):>6} ", Tone.TITLE), Run(bar, tone)))
    return lines


# By size or time


class _Plot:
    """A grid of cells, divided into one slot per size or row."""

    def __init__(
        self,
        curves: Sequence[Curve],
        marks: list[_Mark],
        width: int,
        height: int,
        x_axis: XAxis,
        unit: str,
        span: tuple[float, float] | None,
    ) -> None:
        # A test keeps its letter even if another has no rows.
        lettered = list(zip(LETTERS, curves, strict=False))
        self._letters = [letter for letter, curve in lettered if curve.points]
        self._curves = [curve for _, curve in lettered if curve.points]
        self._width, self._room, self._rows = width, width - _GUTTER, height - 3
        self._x_axis, self._unit, self._all_marks = x_axis, unit, marks
        most = max((value for curve in self._curves for _, value in curve.points), default=0.0)
        least = next((mark.value for mark in marks if mark.is_least), 0.0)
        near = max(most, least * _FAR)
        self._marks = [mark for mark in marks if mark.value <= near]
        highest = max([most, *(mark.value for mark in self._marks)])
        self._top = highest * _HEADROOM if highest > 0 else 1.0
        self._first, self._slots = self._range(span)
        self._merged = max(1, math.ceil(self._slots / self._room))
        self._shown = math.ceil(self._slots / self._merged)
        self._grid: list[list[Run]] = [[Run(" ")] * self._room for _ in range(self._rows)]

    def _column(self, slot: int) -> int:
        """Return the first column of a slot; the slots share the whole width."""
        return slot * self._room // self._shown

    def _bar_of(self, slot: int, number: int) -> tuple[int, int]:
        """Return the columns of a curve's bar in a slot: the first, and one past the last."""
        left, right = self._column(slot), self._column(slot + 1)
        if len(self._curves) == 1:
            return left, right - (right - left > 2)
        wide = (right - left - 1) // len(self._curves)
        return left + number * wide, left + (number + 1) * wide

    def _place(self, x: float) -> int:
        return round(math.log2(x)) if self._x_axis is XAxis.SIZE and x >= 1 else int(x)

    def _range(self, span: tuple[float, float] | None) -> tuple[int, int]:
        xs = [x for curve in self._curves for x, _ in curve.points] + list(span or ())
        places = [self._place(x) for x in xs] or [1]
        first = min(places)
        return first, max(places) - first + 1

    def lines(self) -> list[Line]:
        """Return heading, grid, axis and the labels below it."""
        for mark in sorted(self._marks, key=lambda mark: mark.is_least):
            run = Run("━", Tone.TITLE) if mark.is_least else Run("╌", Tone.DIM)
            self._grid[self._row(mark.value)] = [run] * self._room
        count = len(self._curves)
        is_grouped = count > 1 and self._room // self._shown > count and self._merged == 1
        for number, curve in enumerate(self._curves):
            if count == 1 or is_grouped:
                self._draw_bars(curve, number)
            else:
                for slot, value in self._values(curve).items():
                    letter = Run(self._letters[number], curve.tone)
                    self._grid[self._row(value)][self._column(slot)] = letter
        self._write_labels()
        ticks = self._ticks()
        lines: list[Line] = [fit(self._head(), self._width)]
        for row in range(self._rows):
            tick = ticks.get(row)
            edge = f"{_tick(tick):>{_GUTTER - 1}}┤" if tick is not None else " " * (_GUTTER - 1) + "│"
            lines.append((Run(edge, Tone.DIM), *_runs(self._grid[row])))
        lines.extend(self._axis(is_grouped))
        if not self._curves:
            lines[1 + self._rows // 2] = (Run(" " * (_GUTTER - 1) + "│ No result yet.", Tone.DIM),)
        return lines

    # In the grid

    def _row(self, value: float) -> int:
        """Return the row of a value, 0 at the top."""
        return self._rows - 1 - min(self._rows - 1, int(value / self._top * self._rows))

    def _values(self, curve: Curve) -> dict[int, float]:
        """Return the mean of each slot that has rows."""
        slots = grouped(((self._place(x) - self._first) // self._merged, value) for x, value in curve.points)
        return {slot: sum(values) / len(values) for slot, values in slots.items()}

    def _draw_bars(self, curve: Curve, number: int) -> None:
        for slot, value in self._values(curve).items():
            eighths = max(1, round(value / self._top * self._rows * 8))
            for row in range(self._rows):
                filled = min(8, eighths - (self._rows - 1 - row) * 8)
                if filled <= 0:
                    continue
                for column in range(*self._bar_of(slot, number)):
                    self._grid[row][column] = Run(BLOCKS[filled - 1], curve.tone)

    def _write_labels(self) -> None:
        """Write the names of the limits on their lines, unless a bar is in the way."""
        for mark in self._marks:
            tone = Tone.TITLE if mark.is_least else Tone.DIM
            label = f" {mark.label} "
            row = self._grid[self._row(mark.value)]
            start = self._room - cell_len(label) - 1
            if start >= 0 and all(cell.text in "━╌" for cell in row[start : start + len(label)]):
                row[start : start + len(label)] = [Run(letter, tone) for letter in label]

    # Around the grid

    def _head(self) -> Line:
        runs = [Run(f"{self._unit} by {self._x_axis.value}", Tone.DIM)]
        if len(self._curves) > 1:
            for number, curve in enumerate(self._curves):
                runs.extend([Run(f"  {self._letters[number]} ", Tone.TITLE), Run(curve.name, curve.tone)])
        runs.extend(_limit_runs(self._all_marks, self._unit))
        beyond = [mark.label for mark in self._all_marks if mark not in self._marks]
        return (*runs, Run(f" · beyond: {'; '.join(beyond)}" if beyond else "", Tone.DIM))

    def _ticks(self) -> dict[int, float]:
        """Return round figures by row, at most one for every other row."""
        step = _round_step(self._top / max(1, self._rows / 2))
        ticks: dict[int, float] = {}
        for number in range(1, self._rows + 1):
            if number * step < self._top:
                ticks.setdefault(self._row(number * step), number * step)
        return ticks

    def _axis(self, is_grouped: bool) -> list[Line]:
        marks, labels = ["─"] * self._room, [" "] * self._room
        free = 0
        for slot in range(self._shown):
            column = self._column(slot)
            if is_grouped:
                for number in range(len(self._curves)):
                    marks[self._bar_of(slot, number)[0]] = self._letters[number]
            text = self._name(self._first + slot * self._merged)
            at = min(column, self._room - len(text))
            if at >= free and text:
                labels[at : at + len(text)] = text
                free = at + len(text) + 2
                if not is_grouped:
                    marks[column] = "┬"
        gutter = " " * _GUTTER
        return [
            (Run(f"{'0':>{_GUTTER - 1}}┼{''.join(marks)}", Tone.DIM),),
            (Run(f"{gutter}{''.join(labels)}".rstrip(), Tone.DIM),),
        ]

    def _name(self, place: int) -> str:
        if self._x_axis is XAxis.SIZE:
            return binary_size(1 << max(0, place))
        every = 5 if self._slots > 6 else 1
        # Every slot of merged rows has a label; else only the first and the multiples of five.
        return f"{place} s" if self._merged > 1 or place == 1 or place % every == 0 else ""


def _tick(value: float) -> str:
    """Return a figure of at most five cells."""
    text = short(value)
    for unit in ("k", "M", "G"):
        if len(text) < _GUTTER:
            break
        value /= 1000
        text = f"{short(value)}{unit}"
    return text


def _round_step(least: float) -> float:
    """Return the smallest of 1, 2, 5, 10, … that is at least this."""
    power = 10.0 ** math.floor(math.log10(least)) if least > 0 else 1.0
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999)


def _runs(cells: Sequence[Run]) -> list[Run]:
    """Join neighboring cells of the same tone."""
    runs: list[Run] = []
    for cell in cells:
        if runs and runs[-1].tone is cell.tone:
            runs[-1] = Run(runs[-1].text + cell.text, cell.tone)
        else:
            runs.append(cell)
    return runs
