"""When the doctor looks again by itself: soon after a change, seldom while the changes go on."""

from __future__ import annotations

SHORTEST_SECONDS = 2.0
LONGEST_SECONDS = 30.0
_QUIET_SECONDS = 60.0


class ExaminationPace:
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
