"""The step of one job over time: found by three looks that agree, then followed, and compared with before."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean, median, pstdev

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown
from probes.live.model.step import JobStep, StepPart, UsualStep
from probes.live.step_clock.period import Period, coverage_of, find_period, parts_of
from probes.live.step_clock.series import Series

FAST, SLOW = 0.1, 0.5  # seconds between two readings
LOOK_SECONDS = 60.0
_FAST_SECONDS, _FAST_FROM, _FAST_TO = 60.0, 0.3, 11.0
_SLOW_SECONDS, _SLOW_LEAST_SECONDS, _SLOW_FROM, _SLOW_TO = 600.0, 180.0, 6.0, 75.0
_SLOW_ENOUGH = 8.0  # longer steps are followed by the slow readings alone
_SAME = 0.04  # periods that agree
_MULTIPLE = 0.06  # of a slow period that is a multiple of the fast one
_MULTIPLE_BETTER = 0.1  # by which its correlation has to be higher to be the step
_LOOKS = 3
_SEARCHED_PERIODS = 20
_FOLLOWED_PERIODS, _FOLLOWED_FROM, _FOLLOWED_TO = (10, 20), 0.6, 1.8
_CHANGED = 0.05
_SCATTERS = 3  # standard deviations of the usual looks
_USUAL_LOOKS = 30
_SURE_OF_USUAL = 5  # looks; then one each some minutes is enough
_SAME_BYTES = 0.15  # otherwise the work has changed: batch, sequence length, number of ranks
_MOST_MISSED = 10  # looks in a row without the period
_NETWORK_ERROR_SECONDS, _NETWORK_ERROR = 0.2, 0.03
_SURE_LOOKS = 13  # without a step: the slow readings are complete, too
_RESTS_AFTER = 15  # looks without a step
_ROUND_SECONDS = 300.0  # with one look, when gdrtop reads fast only now and then
_EXTRA_SECONDS = 2.0  # of fast readings before a look

NEEDS_MINUTES = Unknown(Reason.NOT_THERE, "step clock", "needs some minutes of traffic")
NO_PERIOD = Unknown(Reason.NOT_THERE, "step clock", "the traffic has no steady period")
TOO_SLOW = Unknown(Reason.NOT_RECORDED, "step clock", "needs 10 readings a second")


@frozen
class _Look:
    """What the last minutes show."""

    at: float  # seconds, Host.monotonic()
    wall: float  # seconds since 1970
    seconds: float
    network_seconds: float
    step_bytes: float
    coverage: float


class StepClock:
    """The step of a job, from the readings of one NIC's counters."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.step: Maybe[JobStep] = NEEDS_MINUTES
        self._series = Series()
        self._looked_at: float | None = None
        self._looks: list[_Look | None] = []  # the newest ones
        self._usual: list[_Look] = []  # looks at the step as it is when nothing is wrong
        self._usual_until = 0.0  # seconds since 1970
        self._newest: list[_Look] = []  # what is said is their median
        self._changed: list[_Look] = []  # looks in a row that differ from the usual step
        self._missed = 0
        self._is_followed = False

    def interval(self, at: float) -> float:
        """Return how many seconds apart the counters shall be read now."""
        if self._is_followed and self._usual_seconds >= _SLOW_ENOUGH:
            return SLOW
        if self._is_followed and (self._changed or len(self._usual) < _SURE_OF_USUAL):
            return FAST
        if not self._is_followed and self._missed < _RESTS_AFTER:
            return FAST
        since = at - (at if self._looked_at is None else self._looked_at)
        return FAST if since >= _ROUND_SECONDS - _FAST_SECONDS - _EXTRA_SECONDS else SLOW

    def update(self, readings: Iterable[tuple[float, float]], at: float, wall: float) -> Maybe[JobStep]:
        """Take new readings, (seconds, bytes), and return the step; a look at it comes once a minute."""
        self._series.add(readings)
        if self._looked_at is None or at < self._looked_at:
            self._looked_at = at
        if at - self._looked_at >= LOOK_SECONDS - 0.1 and self._look(at, wall):
            self._looked_at = at
        return self.step

    @property
    def _usual_seconds(self) -> float:
        return _median(self._usual, "seconds")

    def _look(self, at: float, wall: float) -> bool:
        """Look at the last minutes; return whether there was enough to see."""
        if self._is_followed:
            return self._follow(at, wall)
        fast = self._series.rates(FAST, _FAST_SECONDS)
        if len(fast) < 0.95 * _FAST_SECONDS / FAST:
            return False
        look = self._search(fast, at, wall)
        self._looks = [*self._looks[1 - _LOOKS :], look]
        self._missed += 1
        agreed = [each for each in self._looks if each is not None]
        if len(agreed) < _LOOKS:
            self.step = NEEDS_MINUTES if self._missed < _SURE_LOOKS else NO_PERIOD
        elif _agree(agreed):
            self._begin(agreed)
        return True

    def _search(self, fast: list[float], at: float, wall: float) -> _Look | None:
        """Look for a period that is not known yet."""
        short = find_period(fast, FAST, _FAST_FROM, _FAST_TO)
        slow = self._series.rates(SLOW, _SLOW_SECONDS)
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

    def _begin(self, looks: list[_Look]) -> None:
        """Follow a step that three looks agree on."""
        self._is_followed, self._missed, self._looks, self._newest = True, 0, [], looks
        if self._usual and not self._is_usual(looks):
            self._changed = looks
            self._judge_change()
        else:
            self._usual = [*self._usual, *looks][-_USUAL_LOOKS:]
            self._usual_until = looks[-1].wall
        self._say(looks[-1])

    def _follow(self, at: float, wall: float) -> bool:
        """Look at a known step again."""
        around = self._changed[-1].seconds if self._changed else self._usual_seconds
        grid = FAST if self._usual_seconds < _SLOW_ENOUGH else SLOW
        found: Period | None = None
        rates: list[float] = []
        for periods in _FOLLOWED_PERIODS:  # the newest ones show a change first; several may be unclear
            wanted = min(_SLOW_SECONDS, max(_FAST_SECONDS, periods * around))
            rates = self._series.rates(grid, wanted)
            if len(rates) < 0.9 * _FOLLOWED_PERIODS[0] / periods * wanted / grid:
                return False
            found = find_period(rates, grid, _FOLLOWED_FROM * around, _FOLLOWED_TO * around)
            if found is not None:
                break
        if found is None:
            self._missed += 1
            self._changed = [] if self._missed >= _LOOKS and not self._has_changed else self._changed
            if self._missed >= _MOST_MISSED:
                self._is_followed, self._missed, self._looks, self._changed = False, 0, [], []
                self.step = NO_PERIOD
            return True
        self._missed = 0
        look = self._seen(rates, grid, found, at, wall)
        if self._is_usual([look]):
            self._changed = []
            self._usual_until = wall
            if len(self._usual) < _USUAL_LOOKS:
                self._usual.append(look)
        else:
            if self._changed and not _agree([self._changed[-1], look]):
                self._changed = []
            self._changed = [*self._changed, look][-_USUAL_LOOKS:]
            self._judge_change()
        self._say(look)
        return True

    def _seen(self, rates: list[float], grid: float, period: Period, at: float, wall: float) -> _Look:
        seconds = period.seconds
        parts = parts_of(rates, seconds / grid, seconds)
        coverage = coverage_of(self._series.rates(grid, _SLOW_SECONDS), seconds / grid)
        return _Look(at, wall, seconds, parts.network_seconds, parts.step_bytes, coverage)

    def _is_usual(self, looks: list[_Look]) -> bool:
        return abs(_median(looks, "seconds") / self._usual_seconds - 1) <= self._least_change

    @property
    def _least_change(self) -> float:
        """The share by which a look has to differ: more for a job whose steps vary."""
        seconds = [look.seconds for look in self._usual]
        return max(_CHANGED, _SCATTERS * pstdev(seconds) / fmean(seconds))

    @property
    def _has_changed(self) -> bool:
        return len(self._changed) >= _LOOKS

    def _judge_change(self) -> None:
        """Take a shorter step, or one that moves other amounts of data, as the usual one from now on."""
        if not self._has_changed:
            return
        now, before = _median(self._changed[-_LOOKS:], "step_bytes"), _median(self._usual, "step_bytes")
        is_new_work = not _is_near(now, before, _SAME_BYTES)
        is_shorter = self._changed[-1].seconds < self._usual_seconds
        if is_new_work or is_shorter:
            self._usual, self._changed = self._changed, []
            self._usual_until = self._usual[-1].wall

    def _say(self, look: _Look) -> None:
        """Say what the newest looks show; a change counts when three of them agree."""
        if self._changed and not self._has_changed:
            return
        self._newest = self._changed[-_LOOKS:] or [*self._newest[1 - _LOOKS :], look]
        now = self._newest
        seconds, network = _median(now, "seconds"), _median(now, "network_seconds")
        usual: UsualStep | None = None
        if self._has_changed:
            before, sent = self._usual_seconds, _median(self._usual, "network_seconds")
            part = _part(network - sent, seconds - before, seconds)
            usual = UsualStep(before, sent, self._usual_until, part)
        amount = _median(now, "step_bytes")
        self.step = JobStep(seconds, network, amount, look.coverage, self.device, usual)


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


def _agree(looks: list[_Look]) -> bool:
    seconds = [look.seconds for look in looks]
    return _is_near(min(seconds), max(seconds), _SAME)


def _median(looks: list[_Look], name: str) -> float:
    return float(median(getattr(look, name) for look in looks))
