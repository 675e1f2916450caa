"""The last minutes of one figure, bounded."""

from __future__ import annotations

from collections import deque

from probes.unknown import Maybe, Unknown

MAX_SAMPLES = 4096
HISTORY_SECONDS = 300.0


class History:
    """A ring of (time, value): the last `seconds`, at most `max_samples` of them."""

    def __init__(self, seconds: float = HISTORY_SECONDS, max_samples: int = MAX_SAMPLES) -> None:
        self._seconds = seconds
        self._samples: deque[tuple[float, float]] = deque(maxlen=max_samples)
        self._newest = 0.0  # of the last reading, also of one that was unknown

    def add(self, at: float, value: Maybe[float]) -> None:
        """Adds a reading taken `at` seconds, not before the last one; an unknown one leaves a gap."""
        self._newest = at
        if not isinstance(value, Unknown):
            self._samples.append((at, value))
        while self._samples and self._samples[0][0] < at - self._seconds:
            self._samples.popleft()

    def samples(self) -> tuple[tuple[float, float], ...]:
        """All that is kept, oldest first."""
        return tuple(self._samples)

    def buckets(self, count: int, seconds: float) -> list[float | None]:
        """The greatest value in each of `count` stretches of `seconds`, the newest reading in the last.

        None stands for a stretch in which nothing was read. Stretches begin at multiples of `seconds`,
        so that a sparkline moves by whole columns and not at every reading.
        """
        values: list[float | None] = [None] * count
        if seconds <= 0:
            return values
        last = self._newest // seconds
        for at, value in reversed(self._samples):
            place = count - 1 - (last - at // seconds)
            if place < 0:
                break
            if place < count:
                before = values[int(place)]
                values[int(place)] = value if before is None else max(before, value)
        return values
