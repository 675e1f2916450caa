"""Bounded history of one figure."""

from __future__ import annotations

from array import array

from probes.base.unknown import Maybe, Unknown

MAX_SAMPLES = 4096
HISTORY_SECONDS = 300.0
_MOST_DRAWN = 3  # graphs of one history that are kept: of different lengths, on one screen


class History:
    """A ring of (time, value): the last `seconds`, at most `max_samples`; 16 bytes per sample."""

    def __init__(self, seconds: float = HISTORY_SECONDS, max_samples: int = MAX_SAMPLES) -> None:
        self._seconds = seconds
        self._max_samples = max_samples
        self._times = array("d")
        self._values = array("d")
        self._newest = 0.0  # time of the last reading, known or unknown
        self._added = 0  # samples so far, those that were dropped too
        # What `buckets` returned for a count and an interval: with the number of the last interval, and the
        # samples added until then.
        self._drawn: dict[tuple[int, float], tuple[list[float | None], float, int]] = {}

    def add(self, at: float, value: Maybe[float]) -> None:
        """Add a reading made at time `at`, in ascending order; an unknown one leaves a gap."""
        self._newest = at
        if not isinstance(value, Unknown):
            self._times.append(at)
            self._values.append(value)
            self._added += 1
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
        if seconds <= 0:
            return [None] * count
        last = self._newest // seconds
        buckets, drawn_last, seen = self._drawn.pop((count, seconds), ([], last, 0))
        moved = last - drawn_last
        # A screen asks each second: only samples that are new since then are looked at.
        if buckets and 0 <= moved < count:
            buckets = [*buckets[int(moved) :], *[None] * int(moved)]
        else:
            buckets, seen = [None] * count, 0
        first = max(0, len(self._times) - (self._added - seen))
        for at, value in zip(self._times[first:], self._values[first:], strict=True):
            index = count - 1 - (last - at // seconds)
            if 0 <= index < count:
                before = buckets[int(index)]
                buckets[int(index)] = value if before is None else max(before, value)
        if len(self._drawn) >= _MOST_DRAWN:
            self._drawn.clear()
        self._drawn[count, seconds] = buckets, last, self._added
        return list(buckets)
