"""A test's rows as curves: bandwidth or latency by message size, by time, or by what was copied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

from probes.bandwidth.model.samples import Sample
from probes.bandwidth.results.against_earlier import latency_us
from probes.base.frozen import frozen
from widgets.base.lines import Tone


class XAxis(Enum):
    """What the x axis of a chart shows."""

    SIZE = "message size"
    TIME = "time"
    NAME = "what was copied"


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
        value = y_value(sample)
        if value is None:
            continue
        if x_axis is XAxis.SIZE:
            if not sample.size_bytes or sample.variant != variant:
                continue
            points.append((float(sample.size_bytes), value))
        else:
            points.append((float(number), value))
        labels.append(_name_of(sample))
    return Curve(name, tuple(points), tone, tuple(labels) if x_axis is XAxis.NAME else ())
