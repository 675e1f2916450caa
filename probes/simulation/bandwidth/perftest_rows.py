"""The rows of perftest's table as time goes, and the traffic behind them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from probes.simulation.bandwidth import speeds as figures
from probes.simulation.bandwidth.perftest_options import Options
from probes.simulation.bandwidth.perftest_text import bandwidth_row, latency_row
from probes.simulation.bandwidth.playback import NEVER, Line

_OF_ALL_SIZES = (0.16, 0.28)  # seconds that a row takes, at least and at most
_LEAST_SECONDS, _MOST_SECONDS = 0.1, 86_400.0
_PEAK = 1.004


@dataclass(frozen=True)
class Measurement:
    """One test between two ends from its first message on."""

    options: Options
    since: float
    sustained_gbps: float  # of large messages; of both directions where it is bidirectional
    latency_us: float  # of the smallest message
    seed: int
    device: str
    has_peak: bool

    def rows(self) -> Iterator[Line]:
        """Every row when it is measured; without end where the test has none."""
        if self.options.is_endless:
            seconds = float(self.options.duration_s or 1)
            for number in count(1):
                yield self._row(self.options.size_bytes, self.since + number * seconds, seconds)
        for size, since, until in self._steps():
            yield self._row(size, until, until - since)

    def last_row(self) -> Iterator[Line]:
        """What an end that takes no part in measuring is told at last; nothing of reads' latency."""
        if self.options.is_endless or self.options.is_latency:
            return
        size, since, until = list(self._steps())[-1]
        yield self._row(size, until, until - since)

    @property
    def ends_at(self) -> float:
        """When the last row has come."""
        return NEVER if self.options.is_endless else list(self._steps())[-1][2]

    def flows(self) -> Iterator[tuple[float, float, float]]:
        """Since, until and Gb/s of each step."""
        if self.options.is_endless:
            yield self.since, NEVER, self._gbps(self.options.size_bytes)
            return
        for size, since, until in self._steps():
            yield since, until, self._gbps(size)

    def _steps(self) -> Iterator[tuple[int, float, float]]:
        """Size, since and until of each row."""
        at = self.since
        for size in self.options.sizes:
            seconds = float(self.options.duration_s or self._seconds_of(size))
            yield size, at, at + seconds
            at += seconds

    def _seconds_of(self, size: int) -> float:
        one = self._latency(size) / 1e6
        if not self.options.is_latency:
            one = size * 8 / (self._gbps(size) * 1e9)
        seconds = one * self.options.counted * self.options.queue_pairs
        if self.options.all_sizes and self.options.iterations is None:
            least, most = _OF_ALL_SIZES
            return min(max(seconds, least), most)
        return min(max(seconds, _LEAST_SECONDS), _MOST_SECONDS)

    def _gbps(self, size: int) -> float:
        if self.options.is_latency:
            return size * 8 / (self._latency(size) * 1e3)
        return figures.of_size(size, self.sustained_gbps, self.options.queue_pairs)

    def _latency(self, size: int) -> float:
        return self.latency_us + size * 8 / (self.sustained_gbps * 1e3)

    def _row(self, size: int, at: float, seconds: float) -> Line:
        one = self.options
        what = f"{one.tool} {self.device} {size}"
        if one.is_latency:
            average = figures.jittered(self._latency(size), self.seed, what, at)
            rounds = int(seconds * 1e6 / average / (1 if one.verb == "read" else 2))
            return Line(at, latency_row(one, size, rounds if one.duration_s else one.counted, average))
        gbps = figures.jittered(self._gbps(size), self.seed, what, at)
        messages = one.counted * one.queue_pairs
        if one.duration_s:
            messages = int(gbps * 1e9 / 8 / size * seconds)
        peak = gbps * _PEAK if self.has_peak else 0.0
        return Line(at, bandwidth_row(one, size, messages, peak, gbps))
