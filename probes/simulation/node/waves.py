"""Moving figures of a simulated node: pure functions of the seed and the seconds since it started.

A rate is a mean and two waves, never negative; its counter is the rate's integral in closed form, so that
counters never go back and any moment can be asked for without playing what came before.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

_SLOW, _FAST = 0.22, 0.08  # amplitudes, as shares of the mean


def phase(seed: int, what: str) -> float:
    """Return the angle of a figure for a seed."""
    return zlib.crc32(f"{seed}/{what}".encode()) / 2**32 * math.tau


@dataclass(frozen=True)
class Wave:
    """A figure that oscillates around its mean."""

    mean: float
    angle: float
    slow_seconds: float = 47.0
    fast_seconds: float = 5.3

    def at(self, seconds: float) -> float:
        """Return the figure at a moment."""
        slow = math.sin(math.tau * seconds / self.slow_seconds + self.angle)
        fast = math.sin(math.tau * seconds / self.fast_seconds + 2 * self.angle)
        return self.mean * (1 + _SLOW * slow + _FAST * fast)

    def total(self, seconds: float) -> float:
        """Return the integral from 0 to a moment."""

        def primitive(time: float) -> float:
            slow = self.slow_seconds / math.tau * math.cos(math.tau * time / self.slow_seconds + self.angle)
            fast = (
                self.fast_seconds / math.tau * math.cos(math.tau * time / self.fast_seconds + 2 * self.angle)
            )
            return self.mean * (time - _SLOW * slow - _FAST * fast)

        return primitive(seconds) - primitive(0.0)


def regions(count: int, angle: float, seconds: float) -> int:
    """Return the number of regions registered through nvidia-peermem, which varies as the job runs."""
    if not count:
        return 0
    return max(1, round(count * (1 + 0.25 * math.sin(math.tau * seconds / 41.0 + angle))))
