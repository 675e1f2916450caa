"""Bounded history of one figure."""

from __future__ import annotations

from array import array

from probes.base.unknown import Maybe, Unknown

MAX_SAMPLES = 4096
HISTORY_SECONDS = 300.0


class History:
    """A ring of (time, value): the last `seconds`, at most `max_samples`; 16 bytes per sample."""

    def __init__(self, seconds: float = HISTORY_SECONDS, max_samples: int = MAX_SAMPLES) -> None:
        self._seconds = seconds
        self._max_samples = max_samples
        self._times = array("d")
        self._values = array("d")
        self._newest = 0.0  # time of the last reading, known or unknown

    def add(self, at: float, value: Maybe[float]) -> None:
        """Add a reading made at time `at`, in ascending order; an unknown one leaves a gap."""
        self._newest = at
        if not isinstance(value, Unknown):
            self._times.append(at)
            self._values.append(value)
        old = max(0, len(self._times) - self._max_samples)
        while old < len(self._times) and self._times[old] < at - self._seconds:
            old += 1
        if old:
            del self._times[:old], self._values[:old]

    def samples(self) -> tuple[tuple[float, float], ...]:
        """Return all samples, oldest first."""
        return tuple(zip(self._times, self._values, strict=True))

    def buckets(self, count: int, seconds: float) -> list[float | None]:
        """Return the maximum of each of `count` intervals of `seconds`; the newest reading is in the last.

        An interval without readings is None. Intervals start at multiples of `seconds`, so that a sparkline
        moves by whole columns, not at every reading.
        """
        values: list[float | None] = [None] * count
        if seconds <= 0:
            return values
        last = self._newest // seconds
        for at, value in zip(reversed(self._times), reversed(self._values), strict=True):
            index = count - 1 - (last - at // seconds)
            if index < 0:
                break
            if index < count:
                before = values[int(index)]
                values[int(index)] = value if before is None else max(before, value)
        return values
