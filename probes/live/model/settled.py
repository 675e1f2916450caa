"""Values that count only after they have held for some samples."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Settled(Generic[T]):
    """A value that changes only after the new one was seen `samples` times in a row."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._candidate: T | None = None
        self._seen = 0
        self.value: T | None = None  # None: no value has settled yet

    def update(self, value: T) -> tuple[T, T] | None:
        """Return the old and the new value if a new one has settled with this sample."""
        if value == self.value:
            self._candidate, self._seen = None, 0
            return None
        if value != self._candidate:
            self._candidate, self._seen = value, 0
        self._seen += 1
        if self._seen < self._samples:
            return None
        old, self.value = self.value, value
        self._candidate, self._seen = None, 0
        return None if old is None else (old, value)


class Lasting:
    """A condition that begins after `on` samples in a row, and ends after `off` samples without it."""

    def __init__(self, on: int, off: int) -> None:
        self._on, self._off = on, off
        self._seen = 0
        self.is_on = False

    def update(self, holds: bool) -> bool:
        """Return whether the condition has begun with this sample."""
        self._seen = self._seen + 1 if holds != self.is_on else 0
        if self._seen < (self._off if self.is_on else self._on):
            return False
        self.is_on, self._seen = holds, 0
        return holds

    def reset(self) -> None:
        """Note that nothing is known of the condition."""
        self.is_on, self._seen = False, 0
