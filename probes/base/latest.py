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

    __slots__ = ("_keeps_equal", "_objects", "_values", "value")

    def __init__(self, keeps_equal: bool = False) -> None:
        self._keeps_equal = keeps_equal
        self.value: T | None = None  # the one that was made last; None: none yet
        self._objects: tuple[object, ...] = ()
        self._values: object = None

    def get(self, make: Callable[[], T], *, objects: tuple[object, ...] = (), values: object = None) -> T:
        """Return the last value, or what `make` returns if it was made from other objects or unequal ones.

        `objects` are replaced when they change and slow to compare, so they are compared by identity, and
        `values` by equality. None is never made. If `make` raises, the next call makes the value again.
        """
        is_other = len(objects) != len(self._objects) or any(map(is_not, objects, self._objects))
        if is_other or values != self._values or self.value is None:
            value = make()
            if self.value is None or not self._keeps_equal or self.value != value:
                self.value = value
        # Equal objects that are newer will be compared with themselves next time, which is fast.
        self._objects, self._values = objects, values
        return self.value

    def forget(self) -> None:
        """Make the value in the next call."""
        self.value, self._objects, self._values = None, (), None
