"""How often the node is read, and when it is checked again without being asked."""

from __future__ import annotations

SHORTEST_SECONDS = 2.0
LONGEST_SECONDS = 30.0
_QUIET_SECONDS = 60.0


class ExaminationSchedule:
    """Doubles the least time between two examinations with each, until the node is quiet for a while."""

    def __init__(self) -> None:
        self._changed = False
        self._at: float | None = None
        self._gap = SHORTEST_SECONDS

    def note_change(self) -> None:
        """The node has changed since it was examined."""
        self._changed = True

    def is_due(self, now: float) -> bool:
        """Whether to examine the node now, taken as done then; `now` in seconds."""
        if not self._changed:
            return False
        since = _QUIET_SECONDS if self._at is None else now - self._at
        if since < self._gap:
            return False
        self._gap = SHORTEST_SECONDS if since >= _QUIET_SECONDS else min(LONGEST_SECONDS, 2 * self._gap)
        self._changed, self._at = False, now
        return True


class ReadingSchedule:
    """Stretches the interval between readings on a node that cannot keep up with it.

    Reading and drawing take at most half of the time, so that probes, checks and keys find room.
    """

    _KEPT = 0.7  # of the cost before: one slow reading among quick ones does not change the interval

    def __init__(self) -> None:
        self._cost = 0.0

    def note_reading(self, seconds: float) -> None:
        """A reading took so long, from the question to the screen."""
        self._cost = seconds * (1 - self._KEPT) + self._cost * self._KEPT

    def interval(self, wanted: float) -> float:
        """Return the seconds between two readings where `wanted` were asked for."""
        return max(wanted, 2 * self._cost)

    def word(self, wanted: float) -> str:
        """Return "every 1 s", or "every 3 s (slow node)" where the interval is clearly stretched."""
        interval = self.interval(wanted)
        if interval < 1.5 * wanted:
            return f"every {wanted:g} s"
        return f"every {interval:.2g} s (slow node)"
