"""When the node is read, and when it is checked again automatically."""

from __future__ import annotations

SHORTEST_SECONDS = 2.0
LONGEST_SECONDS = 30.0
_QUIET_SECONDS = 60.0


class ExaminationSchedule:
    """Double the minimum time between two examinations until the node has been quiet for a while."""

    def __init__(self) -> None:
        self._changed = False
        self._at: float | None = None
        self._gap = SHORTEST_SECONDS

    def note_change(self) -> None:
        """Note that the node has changed since its examination."""
        self._changed = True

    def is_due(self, now: float) -> bool:
        """Return whether to examine the node now, and count it as done; `now` is in seconds."""
        if not self._changed:
            return False
        since = _QUIET_SECONDS if self._at is None else now - self._at
        if since < self._gap:
            return False
        self._gap = SHORTEST_SECONDS if since >= _QUIET_SECONDS else min(LONGEST_SECONDS, 2 * self._gap)
        self._changed, self._at = False, now
        return True


class ReadingSchedule:
    """Stretch the interval between readings on a slow node.

    Reading and drawing take at most half of the time, so that probes, checks and keys stay responsive.
    """

    _SMOOTHING = 0.7  # weight of earlier readings, so that a single slow one changes little

    def __init__(self) -> None:
        self._cost = 0.0

    def note_reading(self, seconds: float) -> None:
        """Note how long a reading took, from the request to the screen."""
        self._cost = seconds * (1 - self._SMOOTHING) + self._cost * self._SMOOTHING

    def interval(self, wanted: float) -> float:
        """Return the seconds between two readings, at least `wanted`."""
        return max(wanted, 2 * self._cost)

    def word(self, wanted: float) -> str:
        """Return "every 1 s", or "every 3 s (slow node)" if the interval is clearly stretched."""
        interval = self.interval(wanted)
        if interval < 1.5 * wanted:
            return f"every {wanted:g} s"
        return f"every {interval:.2g} s (slow node)"
