"""The load of a simulated node over time: waves, steps, and the phases of the training job.

Pure functions of the seed and the seconds since the node started. A rate is a mean and two waves, never
negative; its counter is the rate's integral in closed form, so that counters never go back and any moment
can be asked for without playing what came before. Before the node was opened, the job was in one long
all-reduce.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_right
from collections.abc import Callable
from enum import Enum
from functools import cache, cached_property, lru_cache
from itertools import accumulate, count
from threading import Lock

from probes.base.frozen import frozen
from probes.simulation.node.model.description import NicDescription

_SLOW, _FAST = 0.22, 0.08  # amplitudes, as shares of the mean


@lru_cache(maxsize=4096)
def angle_of(seed: int, name: str) -> float:
    """Return the angle of a figure for a seed."""
    return zlib.crc32(f"{seed}/{name}".encode()) / 2**32 * math.tau


@frozen
class Wave:
    """A figure that oscillates around its mean."""

    mean: float
    angle: float
    slow_seconds: float = 47.0
    fast_seconds: float = 5.3

    def at(self, seconds: float) -> float:
        """Return the figure at a moment."""
        angle, time = self.angle, math.tau * seconds
        slow = math.sin(time / self.slow_seconds + angle)
        fast = math.sin(time / self.fast_seconds + 2 * angle)
        return self.mean * (1 + _SLOW * slow + _FAST * fast)

    def total(self, seconds: float) -> float:
        """Return the integral from 0 to a moment."""
        return self._primitive(seconds) - self._at_start

    @cached_property
    def _at_start(self) -> float:
        return self._primitive(0.0)

    def _primitive(self, time: float) -> float:
        angle, slow, fast = self.angle, self.slow_seconds, self.fast_seconds
        slow = slow / math.tau * math.cos(math.tau * time / slow + angle)
        fast = fast / math.tau * math.cos(math.tau * time / fast + 2 * angle)
        return self.mean * (time - _SLOW * slow - _FAST * fast)


@frozen
class Steps:
    """A factor that changes in steps."""

    step: Callable[[int], tuple[float, float]]  # 0, 1, 2, … → when the step ends in seconds, and its factor
    first: int = 0

    def at(self, seconds: float) -> float:
        """Return the factor at a moment."""
        for number in count(self.first):
            until, factor = self.step(number)
            if seconds < until:
                return factor
        raise AssertionError


def changes(*steps: tuple[float, float], before: float = 1.0) -> Steps:
    """Return a factor that is `before` at first, and each (seconds, factor) from its moment on."""
    ends = [at for at, _ in steps] + [math.inf]
    factors = [before, *(factor for _, factor in steps)]
    return Steps(lambda number: (ends[number], factors[number]))


_KEPT_STEPS = 64


class SteppedTotal:
    """The integral of a rate times a factor, from the integral of the rate; it never goes back."""

    def __init__(self, total: Callable[[float], float], steps: Steps) -> None:
        self._total, self._steps = total, steps
        # The ends of the newest steps, and both integrals up to each end: counters are read for days, each
        # second.
        self._first = 0  # the number of the step that begins at the first end
        self._ends: list[float] = [0.0]
        self._totals: list[float] = [total(0.0)]
        self._sums: list[float] = [0.0]
        self._current = steps.step(0)  # since the last of these ends
        self._newest = self._last_end()
        self._lock = Lock()

    def __call__(self, seconds: float) -> float:
        """Return the integral from 0 to a moment."""
        begin, end, factor, earlier, total = self._newest
        if begin <= seconds < end:  # nearly always
            return earlier + factor * (self._total(seconds) - total)
        with self._lock:
            while seconds >= self._current[0]:
                until, factor = self._current
                total = self._total(until)
                self._sums.append(self._sums[-1] + factor * (total - self._totals[-1]))
                self._totals.append(total)
                self._ends.append(until)
                self._current = self._steps.step(self._first + len(self._ends) - 1)
            self._newest = self._last_end()
            old = len(self._ends) - _KEPT_STEPS
            if old > _KEPT_STEPS:
                del self._ends[:old], self._totals[:old], self._sums[:old]
                self._first += old
            if self._first and seconds < self._ends[0]:
                return SteppedTotal(self._total, self._steps)(seconds)
            number, factor = len(self._ends) - 1, self._current[1]
            if seconds < self._ends[number]:
                number = bisect_right(self._ends, seconds) - 1
                factor = self._steps.step(self._first + number)[1]
            return self._sums[number] + factor * (self._total(seconds) - self._totals[number])

    def _last_end(self) -> tuple[float, float, float, float, float]:
        """Return begin, end and factor of the newest step, and both integrals up to its begin."""
        return self._ends[-1], *self._current, self._sums[-1], self._totals[-1]


OPENED = 3600.0  # when gdrtop opens the node: the job has been running for an hour
_COMPUTE_SECONDS, _CHECKPOINT_SECONDS = 3.0, 8.0
_STEPS_BEFORE_CHECKPOINT = 6
_MOST_ABOVE_MEAN = 1.32  # a wave's highest value, as a share of its mean


class Phase(Enum):
    """What the job does; real steps are shorter than a second and not visible in rates."""

    ALL_REDUCE = "all-reduce"
    COMPUTE = "compute"
    CHECKPOINT = "checkpoint"


COMPUTE_TRAFFIC = {Phase.ALL_REDUCE: 1.0, Phase.COMPUTE: 0.15, Phase.CHECKPOINT: 0.05}
_CHECKPOINT_TRAFFIC = 3.0  # of storage NICs
GPU_LOAD = {Phase.ALL_REDUCE: 1.0, Phase.COMPUTE: 1.2, Phase.CHECKPOINT: 0.4}


@frozen
class Schedule:
    """One round of phases: their names, and when they end, in seconds since the round began."""

    phases: tuple[Phase, ...]
    ends: tuple[float, ...]

    def step(self, number: int) -> tuple[float, Phase]:
        """Return the end and the name of phase `number`; number 0 also covers the time before OPENED."""
        rounds, place = divmod(number, len(self.phases))
        return OPENED + rounds * self.ends[-1] + self.ends[place], self.phases[place]

    def at(self, seconds: float) -> Phase:
        """Return the phase at a moment."""
        since = max(0.0, seconds - OPENED) % self.ends[-1]
        return self.phases[min(bisect_right(self.ends, since), len(self.phases) - 1)]


@cache
def schedule(seed: int) -> Schedule:
    """Return the schedule of a seed; all-reduces take 14 to 20 s."""
    steps = (Phase.ALL_REDUCE, Phase.COMPUTE) * _STEPS_BEFORE_CHECKPOINT
    phases = (*steps, Phase.ALL_REDUCE, Phase.CHECKPOINT)
    seconds = {
        Phase.ALL_REDUCE: 14.0 + seed % 7,
        Phase.COMPUTE: _COMPUTE_SECONDS,
        Phase.CHECKPOINT: _CHECKPOINT_SECONDS,
    }
    return Schedule(phases, tuple(accumulate(seconds[phase] for phase in phases)))


def traffic_steps(seed: int, nic: NicDescription, is_storage: bool) -> Steps:
    """Return the factor by which the phases change a NIC's traffic, within its line rate."""
    plan = schedule(seed)
    most = nic.line_gbps / (nic.gbps * _MOST_ABOVE_MEAN) if nic.gbps else 1.0

    def step(number: int) -> tuple[float, float]:
        until, phase = plan.step(number)
        if is_storage:
            return until, min(_CHECKPOINT_TRAFFIC, most) if phase is Phase.CHECKPOINT else 1.0
        return until, COMPUTE_TRAFFIC[phase]

    return Steps(step)


@lru_cache(maxsize=16)
def phase_at(seed: int, seconds: float) -> Phase:
    """Return the phase at a moment, which is the same for all GPUs."""
    return schedule(seed).at(seconds)
