"""How often a slow source is read: rarely enough that reading it costs nearly nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SHARE = 50  # a round starts no earlier than this many times its own duration after the one before


class Pacing:
    """Rounds of reading at least `least_seconds` apart; slow ones are further apart."""

    def __init__(self, least_seconds: float) -> None:
        self._least = least_seconds
        self._began: float | None = None
        self._pause = 0.0

    @contextmanager
    def round(self, clock: Callable[[], float]) -> Iterator[float | None]:
        """Yield the seconds since the round before; 0: there was none; None: it is too early for a round."""
        now = clock()
        before = self._began
        if before is not None and 0 <= now - before < self._pause:
            yield None
            return
        self._began = now
        # A recording may have been rewound.
        yield 0.0 if before is None or now < before else now - before
        self._pause = max(self._least, _SHARE * (clock() - now))
