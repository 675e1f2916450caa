"""The period of a series of rates, by autocorrelation; silent where it is not clear.

tests/probes/live/step_clock measures over simulated jobs how often it is right, wrong and silent.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from operator import mul
from statistics import fmean

from probes.base.frozen import frozen

LEAST_PERIODS = 5  # in a window
_CLIPPED_FROM = 0.98  # of the values: a checkpoint's burst must not decide
_LEAST_DEVIATION = 0.15  # of the mean: below, the traffic is steady
_LEAST_CORRELATION = 0.45
_OF_BEST = 0.75
_VALLEY = 0.35  # that the correlation falls before a peak
_SECOND = 0.6  # of the first peak, at its second multiple
_NEAR = 0.12  # of the period: where a multiple is searched
_LEAST_MULTIPLE = 0.3
_PART_PERIODS = 4
_HELD = 0.4  # correlation with the next period, within so many
_SENDING = 0.3  # of the 97th percentile: above, the network is in use


@frozen
class Period:
    """A period that was found."""

    seconds: float
    correlation: float


@frozen
class Parts:
    """What a step consists of."""

    network_seconds: float  # in which the NIC is in use
    step_bytes: float  # through the NIC


def find_period(rates: Sequence[float], interval: float, shortest: float, longest: float) -> Period | None:
    """Return the shortest period that explains the rates, between two limits in seconds; None: not clear."""
    count = len(rates)
    most = min(int(longest / interval + 0.5), count // LEAST_PERIODS)
    least = max(2, ceil(shortest / interval - 1e-6))
    if most < least + 1:
        return None
    values = _centered(rates)
    if values is None:
        return None
    lags = _correlations(values, min(int(2.3 * most) + 2, count // 2))
    peaks = _peaks(lags, least, most)
    if not peaks:
        return None
    best = max(lags[peak] for peak in peaks)
    for peak in peaks:
        if lags[peak] >= _OF_BEST * best:
            return _refined(lags, peak, interval)
    return None


def _centered(rates: Sequence[float]) -> list[float] | None:
    """Return the rates without their mean and highest values; None: they hardly vary."""
    ordered = sorted(rates)
    top = ordered[min(len(ordered) - 1, int(_CLIPPED_FROM * len(ordered)))]
    clipped = [min(rate, top) for rate in rates]
    mean = fmean(clipped)
    values = [rate - mean for rate in clipped]
    deviation = sqrt(sum(map(mul, values, values)) / len(values))
    return None if mean <= 0 or deviation < _LEAST_DEVIATION * mean else values


def _correlations(values: Sequence[float], most: int) -> list[float]:
    count = len(values)
    power = sum(map(mul, values, values)) / count
    return [
        sum(map(mul, values, values[lag:] if lag else values)) / (count - lag) / power
        for lag in range(most + 1)
    ]


def _peaks(lags: Sequence[float], least: int, most: int) -> list[int]:
    found = []
    valley = 1.0
    for lag in range(1, min(most, len(lags) - 2) + 1):
        value = lags[lag]
        is_peak = lags[lag - 1] <= value > lags[lag + 1]
        if is_peak and lag >= least and value >= _LEAST_CORRELATION and value - valley >= _VALLEY:
            found.append(lag)
        valley = min(valley, value)
    return found


def _refined(lags: Sequence[float], peak: int, interval: float) -> Period | None:
    """Return the period by its highest multiple; None: the second one is missing."""
    length = _vertex(lags, peak)
    number = 2
    while True:
        near = _NEAR * length
        first, last = int(number * length - near + 0.5), int(number * length + near + 0.5)
        if last > len(lags) - 2:
            break
        top = max(range(first, last + 1), key=lags.__getitem__)
        needed = _SECOND * lags[peak] if number == 2 else _LEAST_MULTIPLE
        is_peak = lags[top - 1] <= lags[top] >= lags[top + 1]
        if lags[top] < needed or not is_peak:
            if number == 2:
                return None
            break
        length = _vertex(lags, top) / number
        number += 1
    return Period(length * interval, lags[peak])


def _vertex(lags: Sequence[float], peak: int) -> float:
    """Return where the parabola through a peak and its neighbors is highest."""
    before, at, after = lags[peak - 1 : peak + 2]
    curve = before - 2 * at + after
    return peak + (0.5 * (before - after) / curve if curve < 0 else 0.0)


def parts_of(rates: Sequence[float], period: float, seconds: float) -> Parts:
    """Return the parts of a step, from the time in which the period holds: no checkpoint or pause.

    `period`: in intervals of the grid.
    """
    ordered = sorted(rates)
    level = _SENDING * ordered[min(len(ordered) - 1, int(0.97 * len(ordered)))]
    held = [rate for part in _held(rates, period)[0] for rate in part] or rates
    busy = sum(rate > level for rate in held) / len(held)
    return Parts(busy * seconds, fmean(held) * seconds)


def coverage_of(rates: Sequence[float], period: float) -> float:
    """Return in which share of the time the rates resemble those of the next period.

    `period`: in intervals of the grid.
    """
    held, count = _held(rates, period)
    return len(held) / count if count else 0.0


def _held(rates: Sequence[float], period: float) -> tuple[list[Sequence[float]], int]:
    """Return the parts of four periods in which the period holds, and how many parts there are."""
    length, lag = round(_PART_PERIODS * period), round(period)
    parts = [rates[begin : begin + length] for begin in range(0, len(rates) - length + 1, max(1, length))]
    return [part for part in parts if lag and _correlation(part, lag) >= _HELD], len(parts)


def _correlation(rates: Sequence[float], lag: int) -> float:
    """Return the correlation of rates with those of a lag later; 0 if they do not vary."""
    mean = fmean(rates)
    values = [rate - mean for rate in rates]
    power = sum(map(mul, values, values)) / len(values)
    return sum(map(mul, values, values[lag:])) / (len(values) - lag) / power if power > 0 else 0.0
