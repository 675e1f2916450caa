"""The chart of a test under way, or of the last: its rows, and of a comparison all paths to memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from probes.bandwidth.model.planned_test import PlannedTest, Series
from probes.bandwidth.model.rating import Rating, rate
from probes.bandwidth.model.result import MOST_SAMPLES, Result
from probes.bandwidth.results.headline import headline
from probes.bandwidth.tools.nccl_tests import NcclSettings
from probes.bandwidth.tools.perftest_command import PerftestSettings
from probes.bandwidth.tools.samples import Sample
from widgets.bandwidth.chart import draw_chart
from widgets.bandwidth.curves import Across, Curve, across_of, curve_of, is_latency
from widgets.bandwidth.result import mark_of
from widgets.base.lines import Line, Tone

MOST_COMPARED = 3
_LARGEST_BYTES = 8 << 20  # of perftest's -a


@dataclass(frozen=True)
class Rows:
    """What a test has measured: the newest rows, and how many there ever were."""

    samples: Sequence[Sample]
    ever: int

    @property
    def first(self) -> int:
        """The number of the first that is kept, from 1."""
        return max(0, self.ever - len(self.samples)) + 1


def draw(
    series: Series,
    test: PlannedTest,
    rows: Rows,
    before: Sequence[tuple[Result, Rows]],
    width: int,
    height: int,
) -> list[Line]:
    """`before` are the results before this test, the oldest first."""
    settings, samples = test.settings, rows.samples
    perftest = settings if isinstance(settings, PerftestSettings) else None
    is_endless = perftest is not None and perftest.is_endless
    across = across_of(samples, is_endless) if samples else _expected(test)
    as_latency = is_latency(samples) or (perftest is not None and perftest.is_latency)
    curves = _earlier_curves(series, before, across)
    if samples:
        tone = _tone(samples, test)
        curves.append(curve_of(test.memory or test.title, samples, across, tone, rows.first))
    ways = 2 if perftest and perftest.is_bidirectional and not test.limit.is_loopback else 1
    limit = None if as_latency else test.limit
    has_bus = any(one.bus_gbps is not None for one in samples)
    unit = "µs" if as_latency else "bus Gb/s" if has_bus else "Gb/s"
    return draw_chart(curves, limit, width, height, across, unit, ways, _span(test, rows.ever))


def _earlier_curves(series: Series, before: Sequence[tuple[Result, Rows]], across: Across) -> list[Curve]:
    """Of a comparison of memories on one NIC: the results before the test under way."""
    nics = {test.pair.nic for test in series.tests}
    if len(series.tests) > MOST_COMPARED or len(nics) != 1 or len(series.tests) == 1:
        return []
    return [curve_of(one.memory, one.samples, across, mark_of(one).tone, rows.first) for one, rows in before]


def _tone(samples: Sequence[Sample], test: PlannedTest) -> Tone:
    figure = headline(samples, test.settings)
    if figure is None or figure.gbps is None:
        return Tone.NIC
    verdict = rate(figure, test.limit).verdict
    return {Rating.NEAR: Tone.GOOD, Rating.BELOW: Tone.WARNING}.get(verdict, Tone.NIC)


def _expected(test: PlannedTest) -> Across:
    settings = test.settings
    if isinstance(settings, PerftestSettings):
        return Across.TIME if settings.is_endless else Across.SIZE
    return Across.SIZE if isinstance(settings, NcclSettings) else Across.NAME


def _span(test: PlannedTest, rows: int) -> tuple[float, float] | None:
    """The sizes or rows that are to come."""
    settings = test.settings
    if isinstance(settings, NcclSettings):
        return settings.begin_bytes, settings.end_bytes
    if not isinstance(settings, PerftestSettings):
        return None
    if settings.all_sizes:
        return 2, _LARGEST_BYTES
    if not settings.is_endless:
        return None if settings.size_bytes is None else (settings.size_bytes, settings.size_bytes)
    gone = max(0, rows - MOST_SAMPLES)
    return gone + 1, gone + min(MOST_SAMPLES, max(test.end_after_s or 1, rows, 1))
