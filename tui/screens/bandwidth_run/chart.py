"""The chart of the running or last test; of a comparison, with all paths to memory."""

from __future__ import annotations

from collections.abc import Sequence

from probes.bandwidth.model.planned_series import PlannedTest, Series
from probes.bandwidth.model.rating import Rating, headline, rate
from probes.bandwidth.model.result import MOST_SAMPLES, Result
from probes.bandwidth.model.samples import Sample
from probes.bandwidth.tools.nccl_tests import NcclSettings
from probes.bandwidth.tools.perftest_command import PerftestSettings
from probes.base.frozen import frozen
from widgets.bandwidth.chart import Curve, XAxis, curve_of, draw_chart, is_latency, x_axis_of
from widgets.bandwidth.result import mark_of
from widgets.base.lines import Line, Tone

MOST_COMPARED = 3
_LARGEST_BYTES = 8 << 20  # with perftest's -a


@frozen
class Rows:
    """The newest rows of a test, and the count of all."""

    samples: Sequence[Sample]
    count: int

    @property
    def first(self) -> int:
        """Return the number of the first row that is kept, from 1."""
        return max(0, self.count - len(self.samples)) + 1


def draw(
    series: Series,
    test: PlannedTest,
    rows: Rows,
    before: Sequence[tuple[Result, Rows]],
    width: int,
    height: int,
) -> list[Line]:
    """Return the chart; `before` are the results before this test, oldest first."""
    settings, samples = test.settings, rows.samples
    perftest = settings if isinstance(settings, PerftestSettings) else None
    is_endless = perftest is not None and perftest.is_endless
    x_axis = x_axis_of(samples, is_endless) if samples else _expected_axis(test)
    as_latency = is_latency(samples) or (perftest is not None and perftest.is_latency)
    curves = _earlier_curves(series, before, x_axis)
    if samples:
        tone = _tone(samples, test)
        curves.append(curve_of(test.memory or test.title, samples, x_axis, tone, rows.first))
    directions = 2 if perftest and perftest.is_bidirectional and not test.limit.is_loopback else 1
    limit = None if as_latency else test.limit
    has_bus = any(sample.bus_gbps is not None for sample in samples)
    unit = "µs" if as_latency else "bus Gb/s" if has_bus else "Gb/s"
    return draw_chart(curves, limit, width, height, x_axis, unit, directions, _span(test, rows.count))


def _earlier_curves(series: Series, before: Sequence[tuple[Result, Rows]], x_axis: XAxis) -> list[Curve]:
    """Return the curves of the results before this test, if the series compares memories on one NIC."""
    nics = {test.pair.nic for test in series.tests}
    if len(series.tests) > MOST_COMPARED or len(nics) != 1 or len(series.tests) == 1:
        return []
    return [
        curve_of(result.memory or result.title, result.samples, x_axis, mark_of(result).tone, rows.first)
        for result, rows in before
    ]


def _tone(samples: Sequence[Sample], test: PlannedTest) -> Tone:
    figure = headline(samples, test.settings)
    if figure is None or figure.gbps is None:
        return Tone.NIC
    verdict = rate(figure, test.limit).verdict
    return {Rating.NEAR: Tone.GOOD, Rating.BELOW: Tone.WARNING}.get(verdict, Tone.NIC)


def _expected_axis(test: PlannedTest) -> XAxis:
    settings = test.settings
    if isinstance(settings, PerftestSettings):
        return XAxis.TIME if settings.is_endless else XAxis.SIZE
    return XAxis.SIZE if isinstance(settings, NcclSettings) else XAxis.NAME


def _span(test: PlannedTest, rows: int) -> tuple[float, float] | None:
    """Return the range of sizes or rows that the test will have, if it is known."""
    settings = test.settings
    if isinstance(settings, NcclSettings):
        return settings.begin_bytes, settings.end_bytes
    if not isinstance(settings, PerftestSettings):
        return None
    if settings.all_sizes:
        return 2, _LARGEST_BYTES
    if not settings.is_endless:
        return None if settings.size_bytes is None else (settings.size_bytes, settings.size_bytes)
    dropped = max(0, rows - MOST_SAMPLES)
    return dropped + 1, dropped + min(MOST_SAMPLES, max(test.end_after_s or 1, rows, 1))
