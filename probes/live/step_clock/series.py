"""Bytes through a NIC as they were read, and their rates on a grid."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable

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
