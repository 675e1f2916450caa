"""A cache of one value, for what is asked again and again and seldom changes."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_not
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """Keep the value that was made last, and make it again when what it was made from changes.

    `keeps_equal`: where a new value equals the one before, return the object before. Those who compare it by
    identity then see that nothing changed.
    """

    __slots__ = ("_equal", "_keeps_equal", "_same", "value")

    def __init__(self, keeps_equal: bool = False) -> None:
        self._keeps_equal = keeps_equal
        self.value: T | None = None  # the one that was made last; None: none yet
        self._same: tuple[object, ...] = ()
        self._equal: object = None

    def get(self, make: Callable[[], T], *, same: tuple[object, ...] = (), equal: object = None) -> T:
        """Return the last value, or what `make` returns if it was made from other objects or unequal ones.

        `same` is compared by identity: for objects that are replaced when they change, and slow to compare.
        Values are never None. If `make` raises, the last value stays and is made again in the next call.
        """
        is_other = len(same) != len(self._same) or any(map(is_not, same, self._same))
        if is_other or equal != self._equal or self.value is None:
            value = make()
            if self.value is None or not self._keeps_equal or self.value != value:
                self.value = value
        # Equal objects that are newer will be compared with themselves next time, which is fast.
        self._same, self._equal = same, equal
        return self.value

    def forget(self) -> None:
        """Make the value in the next call."""
        self.value, self._same, self._equal = None, (), None
