"""A test's rows as curves: bandwidth or latency by message size, by time, or by what was copied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from probes.bandwidth.results.against_earlier import latency_us
from probes.bandwidth.tools.samples import Sample
from widgets.base.lines import Tone


class Across(Enum):
    """What the chart goes along."""

    SIZE = "message size"
    TIME = "time"
    NAME = "what was copied"


@dataclass(frozen=True)
class Curve:
    """The rows of one test."""

    name: str
    points: tuple[tuple[float, float], ...]  # (bytes, or number of the row), Gb/s or µs
    tone: Tone = Tone.GOOD
    labels: tuple[str, ...] = ()  # with Across.NAME, one a point


def is_latency(samples: Sequence[Sample]) -> bool:
    """Whether times were measured and no bandwidth."""
    return any(one.latencies for one in samples) and not any(one.gbps is not None for one in samples)


def figure_of(sample: Sample) -> float | None:
    """What a row's place in the chart is: Gb/s, of a collective its bus bandwidth; else µs, the typical."""
    figures = (sample.bus_gbps, sample.gbps, latency_us(sample))
    figure = next((one for one in figures if one is not None), None)
    return figure if figure is not None and math.isfinite(figure) and figure >= 0 else None


def across_of(samples: Sequence[Sample], is_endless: bool) -> Across:
    """What these rows differ in."""
    if is_endless:
        return Across.TIME
    sizes = {one.size_bytes for one in samples if one.size_bytes is not None}
    names = {_name_of(one) for one in samples}
    return Across.NAME if not sizes or (len(sizes) == 1 and len(names) > 1) else Across.SIZE


def _name_of(sample: Sample) -> str:
    return f"{sample.what} {sample.variant}".rstrip()


def curve_of(
    name: str, samples: Sequence[Sample], across: Across, tone: Tone = Tone.GOOD, first: int = 1
) -> Curve:
    """The curve of a test's rows; those without a figure are left out.

    `first` is the number of the first row: of a long test only the newest rows are kept. By size only rows of
    the first variant count: nccl-tests measures each size out of place and in place.
    """
    points: list[tuple[float, float]] = []
    labels: list[str] = []
    variant = next((one.variant for one in samples if one.size_bytes is not None), "")
    for number, sample in enumerate(samples, first):
        figure = figure_of(sample)
        if figure is None:
            continue
        if across is Across.SIZE:
            if not sample.size_bytes or sample.variant != variant:
                continue
            points.append((float(sample.size_bytes), figure))
        else:
            points.append((float(number), figure))
        labels.append(_name_of(sample))
    return Curve(name, tuple(points), tone, tuple(labels) if across is Across.NAME else ())
