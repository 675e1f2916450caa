"""The step of one job over time: found by three estimates that agree, followed, and compared with before."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import ceil, sqrt
from operator import mul
from statistics import fmean, median, pstdev

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown
from probes.live.model.activity import SILENT_SECONDS
from probes.live.model.sample import JobStep, StepPart, UsualStep

# The period of a series of rates, by autocorrelation; silent where it is not clear.
#
# tests/probes/live/step_clock measures over simulated jobs how often it is right, wrong and silent.

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
    """Return a step's parts while the period, in grid intervals, holds: no checkpoint or pause."""
    ordered = sorted(rates)
    level = _SENDING * ordered[min(len(ordered) - 1, int(0.97 * len(ordered)))]
    held = [rate for part in _held(rates, period)[0] for rate in part] or rates
    busy = sum(rate > level for rate in held) / len(held)
    return Parts(busy * seconds, fmean(held) * seconds)


def coverage_of(rates: Sequence[float], period: float) -> float:
    """Return the share of the time in which rates resemble the next period's, in grid intervals."""
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


KEPT_SECONDS = 620.0
_MOST_READINGS = 8000
_GAP = 5.0  # readings further apart than this many grid intervals interrupt a window
_STALE_SECONDS = 2.5  # without a reading: five intervals of the slow ones
_LEAST_SHARE = 0.8  # of the grid's intervals that need a reading of their own


class Series:
    """The newest readings of a counter that counts up; a counter that goes backward begins again."""

    def __init__(self) -> None:
        self._times = array("d")  # seconds, Host.monotonic()
        self._bytes = array("d")

    def add(self, readings: Iterable[tuple[float, float]]) -> None:
        """Append (seconds, bytes), and forget what is too old."""
        for at, count in readings:
            if self._times:
                if at <= self._times[-1]:
                    if at < self._times[-1] - KEPT_SECONDS:  # another clock
                        self.clear()
                    else:
                        continue
                elif count < self._bytes[-1]:  # it was reset, or wrapped
                    self.clear()
            self._times.append(at)
            self._bytes.append(count)
        if not self._times:
            return
        old = bisect_left(self._times, self._times[-1] - KEPT_SECONDS)
        old = max(old, len(self._times) - _MOST_READINGS)
        if old > len(self._times) // 8:
            del self._times[:old], self._bytes[:old]

    def clear(self) -> None:
        """Forget all readings."""
        del self._times[:], self._bytes[:]

    def moved(self, seconds: float, at: float) -> float | None:
        """Return the bytes of the last `seconds` before a time; None if they were not read."""
        if not self._times or at - self._times[-1] > max(seconds, _STALE_SECONDS):
            return None
        first = max(0, bisect_left(self._times, at - seconds) - 1)
        return self._bytes[-1] - self._bytes[first]

    def rates(self, interval: float, seconds: float, at: float) -> list[float]:
        """Return the bytes a second in each interval of the last `seconds` before a time, oldest first.

        Fewer if the readings begin later or are interrupted, none if they are not dense enough for the grid,
        or the newest one is old.
        A counter integrates: a late reading moves no bytes.
        """
        times, count = self._times, self._bytes
        last = len(times) - 1
        first = last
        if not times or at - times[last] > _STALE_SECONDS:
            return []
        begin = times[last] - seconds
        while first > 0 and times[first] > begin and times[first] - times[first - 1] <= _GAP * interval:
            first -= 1
        if first >= last:
            return []
        steps = min(int((times[last] - times[first]) / interval + 1e-6), round(seconds / interval))
        if last - first < _LEAST_SHARE * steps:
            return []
        start = times[last] - steps * interval
        index, rates = first, []
        before: float | None = None
        for step in range(steps + 1):
            now = start + step * interval
            while index < last - 1 and times[index + 1] < now:
                index += 1
            span = times[index + 1] - times[index]
            share = min(1.0, max(0.0, (now - times[index]) / span))
            total = count[index] + share * (count[index + 1] - count[index])
            if before is not None:
                rates.append((total - before) / interval)
            before = total
        return rates


FAST, SLOW = 0.1, 0.5  # seconds between two readings
ESTIMATE_SECONDS = 60.0
_FAST_SECONDS, _FAST_FROM, _FAST_TO = 60.0, 0.3, 11.0
_SLOW_SECONDS, _SLOW_LEAST_SECONDS, _SLOW_FROM, _SLOW_TO = 600.0, 180.0, 6.0, 75.0
_SLOW_ENOUGH = 8.0  # longer steps are followed by the slow readings alone
_SAME = 0.04  # periods that agree
_MULTIPLE = 0.06  # of a slow period that is a multiple of the fast one
_MULTIPLE_BETTER = 0.1  # by which its correlation has to be higher to be the step
_AGREEING = 3
_SEARCHED_PERIODS = 20
_FOLLOWED_PERIODS, _FOLLOWED_FROM, _FOLLOWED_TO = (10, 20), 0.6, 1.8
_CHANGED = 0.05
_SCATTERS = 3  # standard deviations of the usual estimates
_USUAL_ESTIMATES = 30
_SURE_OF_USUAL = 5  # estimates; then one every few minutes is enough
_SAME_BYTES = 0.15  # otherwise the work has changed: batch, sequence length, number of ranks
_MOST_MISSED = 10  # estimates in a row without the period
_NETWORK_ERROR_SECONDS, _NETWORK_ERROR = 0.2, 0.03
_SURE_ESTIMATES = 13  # without a step: the slow readings are complete, too
_RESTS_AFTER = 15  # estimates without a step
# The job waits or has ended if so many steps move less than this share of the bytes of one.
_SILENT_STEPS, _SILENT_SHARE = 3, 0.1
_ROUND_SECONDS = 300.0  # with one estimate, when gdrtop reads fast only now and then
_EXTRA_SECONDS = 2.0  # of fast readings before an estimate

NEEDS_MINUTES = Unknown(Reason.NOT_YET, "step clock", "it takes some minutes of traffic")
NO_PERIOD = Unknown(Reason.NOT_THERE, "step clock", "the traffic has no steady period")
NO_TRAFFIC = Unknown(Reason.NOT_THERE, "step clock", "the NIC carries no traffic now")
NO_READINGS = Unknown(Reason.TIMED_OUT, "step clock", "the counters were not read in time")


@frozen
class _Estimate:
    since: float  # when the readings begin that it comes from; seconds, Host.monotonic()
    wall: float  # seconds since 1970
    seconds: float
    network_seconds: float
    step_bytes: float
    coverage: float


class StepClock:
    """The step of a job, from the readings of one NIC's counters."""

    def __init__(self, device: str, files: tuple[str, ...] = ()) -> None:
        self.device = device
        self.files = files  # of its counters
        self.step: Maybe[JobStep] = NEEDS_MINUTES  # as it was last estimated
        self._series = Series()
        self._estimated_at: float | None = None
        self._estimates: list[_Estimate | None] = []  # the newest ones
        self._usual: list[_Estimate] = []  # of the step as it is when nothing is wrong
        self._usual_until = 0.0  # seconds since 1970
        self._newest: list[_Estimate] = []  # what is said is their median
        self._changed: list[_Estimate] = []  # in a row that differ from the usual step
        self._missed = 0
        self.is_followed = False

    def interval(self, at: float) -> float:
        """Return how many seconds apart the counters shall be read now."""
        if self.is_followed and self._usual_seconds >= _SLOW_ENOUGH:
            return SLOW
        if self.is_followed and (self._changed or len(self._usual) < _SURE_OF_USUAL):
            return FAST
        if not self.is_followed and self._missed < _RESTS_AFTER:
            return FAST
        since = at - (at if self._estimated_at is None else self._estimated_at)
        return FAST if since >= _ROUND_SECONDS - _FAST_SECONDS - _EXTRA_SECONDS else SLOW

    def update(self, readings: Iterable[tuple[float, float]], at: float, wall: float) -> Maybe[JobStep]:
        """Take new readings, (seconds, bytes), and return the step; it is estimated once a minute."""
        self._series.add(readings)
        if self._estimated_at is None or at < self._estimated_at:
            self._estimated_at = at
        if at - self._estimated_at >= ESTIMATE_SECONDS - 0.1 and self._estimate(at, wall):
            self._estimated_at = at
        return self.step if isinstance(self.step, Unknown) else self._now(self.step, at)

    def _now(self, step: JobStep, at: float) -> Maybe[JobStep]:
        """Return the step; unknown while its job waits, or has ended."""
        seconds = max(SILENT_SECONDS, _SILENT_STEPS * step.seconds)
        moved = self._series.moved(seconds, at)
        if moved is None:
            return NO_READINGS
        return NO_TRAFFIC if moved < _SILENT_SHARE * step.step_bytes else step

    @property
    def _usual_seconds(self) -> float:
        return _median(self._usual, "seconds")

    def _estimate(self, at: float, wall: float) -> bool:
        """Estimate the step of the last minutes; return whether there were enough readings."""
        if self.is_followed:
            return self._follow(at, wall)
        fast = self._series.rates(FAST, _FAST_SECONDS, at)
        if len(fast) < 0.95 * _FAST_SECONDS / FAST:
            return False
        estimate = self._search(fast, at, wall)
        self._estimates = [*self._estimates[1 - _AGREEING :], estimate]
        self._missed += 1
        agreed = [each for each in self._estimates if each is not None]
        if len(agreed) < _AGREEING:
            self.step = NEEDS_MINUTES if self._missed < _SURE_ESTIMATES else NO_PERIOD
        elif _agree(agreed):
            self._begin(agreed)
        return True

    def _search(self, fast: list[float], at: float, wall: float) -> _Estimate | None:
        short = find_period(fast, FAST, _FAST_FROM, _FAST_TO)
        slow = self._series.rates(SLOW, _SLOW_SECONDS, at)
        long: Period | None = None
        if len(slow) >= _SLOW_LEAST_SECONDS / SLOW:
            long = find_period(slow, SLOW, _SLOW_FROM, _SLOW_TO)
        if long is not None and len(slow) * SLOW < min(
            0.98 * _SLOW_SECONDS, _SEARCHED_PERIODS * long.seconds
        ):
            long = None  # too few to tell jitter from a change
        if short is not None and long is not None:
            times = long.seconds / short.seconds
            is_multiple = abs(times - round(times)) <= _MULTIPLE * round(times)
            if not is_multiple:
                return None
            if round(times) > 1 and long.correlation > short.correlation + _MULTIPLE_BETTER:
                short = None
        if short is not None:
            return self._seen(fast, FAST, short, at, wall)
        return None if long is None else self._seen(slow, SLOW, long, at, wall)

    def _begin(self, estimates: list[_Estimate]) -> None:
        """Follow a step that three estimates agree on."""
        self.is_followed, self._missed, self._estimates, self._newest = True, 0, [], estimates
        if self._usual and not self._is_usual(_median(estimates, "seconds")):
            self._changed = estimates
            self._judge_change()
        else:
            self._usual = [*self._usual, *estimates][-_USUAL_ESTIMATES:]
            self._usual_until = estimates[-1].wall
        self._say(estimates[-1])

    def _follow(self, at: float, wall: float) -> bool:
        around = self._changed[-1].seconds if self._changed else self._usual_seconds
        grid = FAST if self._usual_seconds < _SLOW_ENOUGH else SLOW
        found: Period | None = None
        rates: list[float] = []
        for periods in _FOLLOWED_PERIODS:  # the newest ones show a change first; several may be unclear
            wanted = min(_SLOW_SECONDS, max(_FAST_SECONDS, periods * around))
            rates = self._series.rates(grid, wanted, at)
            if len(rates) < 0.9 * _FOLLOWED_PERIODS[0] / periods * wanted / grid:
                return False
            found = find_period(rates, grid, _FOLLOWED_FROM * around, _FOLLOWED_TO * around)
            if found is not None:
                break
        if found is None:
            self._missed += 1
            self._changed = [] if self._missed >= _AGREEING and not self._has_changed else self._changed
            if self._missed >= _MOST_MISSED:
                self.is_followed, self._missed, self._estimates, self._changed = False, 0, [], []
                self.step = NO_PERIOD
            return True
        self._missed = 0
        estimate = self._seen(rates, grid, found, at, wall)
        if self._is_usual(estimate.seconds):
            self._changed = []
            self._usual_until = wall
            if len(self._usual) < _USUAL_ESTIMATES:
                self._usual.append(estimate)
        else:
            if self._changed and not _agree([self._changed[-1], estimate]):
                self._changed = []
            self._changed = [*self._changed, estimate][-_USUAL_ESTIMATES:]
            self._judge_change()
        self._say(estimate)
        return True

    def _seen(self, rates: list[float], grid: float, period: Period, at: float, wall: float) -> _Estimate:
        seconds = period.seconds
        parts = parts_of(rates, seconds / grid, seconds)
        since = at - len(rates) * grid
        covered = _SLOW_SECONDS
        if self._usual and not self._is_usual(seconds):  # the steps before the change are no gaps in it
            covered = at - min(since, self._changed[0].since if self._changed else since)
        coverage = coverage_of(self._series.rates(grid, min(covered, _SLOW_SECONDS), at), seconds / grid)
        return _Estimate(since, wall, seconds, parts.network_seconds, parts.step_bytes, coverage)

    def _is_usual(self, seconds: float) -> bool:
        return abs(seconds / self._usual_seconds - 1) <= self._least_change

    @property
    def _least_change(self) -> float:
        """The share by which an estimate has to differ: more for a job whose steps vary."""
        seconds = [estimate.seconds for estimate in self._usual]
        return max(_CHANGED, _SCATTERS * pstdev(seconds) / fmean(seconds))

    @property
    def _has_changed(self) -> bool:
        return len(self._changed) >= _AGREEING

    def _judge_change(self) -> None:
        """Take a shorter step, or one that moves other amounts of data, as the usual one from now on."""
        if not self._has_changed:
            return
        now, before = _median(self._changed[-_AGREEING:], "step_bytes"), _median(self._usual, "step_bytes")
        is_new_work = not _is_near(now, before, _SAME_BYTES)
        is_shorter = self._changed[-1].seconds < self._usual_seconds
        if is_new_work or is_shorter:
            self._usual, self._changed = self._changed, []
            self._usual_until = self._usual[-1].wall

    def _say(self, estimate: _Estimate) -> None:
        """Say what the newest estimates show; a change counts when three of them agree."""
        if self._changed and not self._has_changed:
            return
        self._newest = self._changed[-_AGREEING:] or [*self._newest[1 - _AGREEING :], estimate]
        now = self._newest
        seconds, network = _median(now, "seconds"), _median(now, "network_seconds")
        usual: UsualStep | None = None
        if self._has_changed:
            before, sent = self._usual_seconds, _median(self._usual, "network_seconds")
            part = _part(network - sent, seconds - before, seconds)
            usual = UsualStep(before, sent, self._usual_until, part)
        amount, coverage = _median(now, "step_bytes"), _median(now, "coverage")
        self.step = JobStep(seconds, network, amount, coverage, self.device, usual, self.files)


def _part(grown: float, longer: float, seconds: float) -> StepPart:
    """Return which part has grown: the network's seconds by `grown`, of `longer` in all."""
    error = max(_NETWORK_ERROR_SECONDS, _NETWORK_ERROR * seconds)
    if longer <= error:
        return StepPart.UNCLEAR
    if grown >= 0.7 * longer:
        return StepPart.NETWORK
    if grown <= 0.3 * longer:
        return StepPart.REST
    return StepPart.BOTH


def _is_near(value: float, other: float, share: float) -> bool:
    return abs(value - other) <= share * max(value, other)


def _agree(estimates: list[_Estimate]) -> bool:
    seconds = [estimate.seconds for estimate in estimates]
    return _is_near(min(seconds), max(seconds), _SAME)


def _median(estimates: list[_Estimate], name: str) -> float:
    return float(median(getattr(estimate, name) for estimate in estimates))
