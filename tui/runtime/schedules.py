"""When the node is read, and when it is checked again automatically."""

from __future__ import annotations

from collections.abc import Hashable

SHORTEST_SECONDS = 2.0
LONGEST_SECONDS = 30.0
# What no event shows, as a setting that someone changes, is seen after this time at the latest.
EVERY_SECONDS = 600.0
_QUIET_SECONDS = 60.0


class CheckSchedule:
    """Check at once when something of a kind has changed; the same kind again after a time that doubles."""

    def __init__(self) -> None:
        self._pending: set[Hashable] = set()
        self._gaps: dict[Hashable, tuple[float, float]] = {}  # (checked at, seconds to the next check)
        self._checked_at: float | None = None

    def note_change(self, kind: Hashable) -> None:
        """Note that something of this kind has changed since the last check."""
        self._pending.add(kind)

    def is_due(self, now: float) -> bool:
        """Return whether to check the node now; `now` is in seconds."""
        if self._checked_at is not None and now < self._checked_at:  # a recording was rewound
            self._gaps.clear()
            return True
        never = now - LONGEST_SECONDS, 0.0
        gaps = (self._gaps.get(kind, never) for kind in self._pending)
        return self.is_old(now) or any(now - checked_at >= gap for checked_at, gap in gaps)

    def is_old(self, now: float) -> bool:
        """Return whether the last check is so long ago that the facts may have changed without an event."""
        return self._checked_at is not None and now - self._checked_at >= EVERY_SECONDS

    def note_check(self, now: float) -> None:
        """Note that the node has been checked."""
        for kind in self._pending:
            checked_at, gap = self._gaps.get(kind, (now - _QUIET_SECONDS, 0.0))
            is_quiet = now - checked_at >= _QUIET_SECONDS
            gap = SHORTEST_SECONDS if is_quiet else min(LONGEST_SECONDS, max(SHORTEST_SECONDS, 2 * gap))
            self._gaps[kind] = now, gap
        self._pending.clear()
        self._checked_at = now


USUAL_PACE = "every 1 s"  # without --interval


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
