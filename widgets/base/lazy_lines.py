"""Lines that are made when they are asked for: of a long drawing, few are visible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from widgets.base.lines import Line


class LazyLines(Sequence[Line]):
    """So many lines; `make` returns the line of a row, and each is made once."""

    def __init__(self, count: int, make: Callable[[int], Line]) -> None:
        self._count, self._make = count, make
        self._made: dict[int, Line] = {}

    @classmethod
    def of(cls, lines: Sequence[Line]) -> LazyLines:
        """Return lines that are there already."""
        return cls(len(lines), lines.__getitem__)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, row: int) -> Line: ...

    @overload
    def __getitem__(self, row: slice) -> list[Line]: ...

    def __getitem__(self, row: int | slice) -> Line | list[Line]:
        if isinstance(row, slice):
            return [self[number] for number in range(*row.indices(self._count))]
        number = row + self._count if row < 0 else row
        if not 0 <= number < self._count:
            raise IndexError(row)
        if number not in self._made:
            self._made[number] = self._make(number)
        return self._made[number]

    def followed_by(self, lines: Sequence[Line]) -> LazyLines:
        """Return these lines and others below."""
        return LazyLines(
            self._count + len(lines),
            lambda row: self[row] if row < self._count else lines[row - self._count],
        )

    def mapped(self, change: Callable[[Line], Line]) -> LazyLines:
        """Return the changed lines."""
        return LazyLines(self._count, lambda row: change(self[row]))
