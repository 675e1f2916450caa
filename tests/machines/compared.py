"""The result of a comparison, and how two readings of the same are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from probes.base.frozen import frozen
from probes.base.unknown import Unknown


@frozen
class Compared:
    """How many values were compared, and those that differ."""

    values: int
    differences: tuple[str, ...] = ()

    @property
    def agreed(self) -> int:
        """How many are the same."""
        return self.values - len(self.differences)

    def __add__(self, other: Compared) -> Compared:
        return Compared(self.values + other.values, self.differences + other.differences)


def compare(truth: Mapping[Any, object], ours: Mapping[Any, object]) -> Compared:
    """Compare by key; a value that only one side has differs, and so does an unknown one."""
    missing = object()
    keys = dict.fromkeys((*truth, *ours))
    differ = [key for key in keys if truth.get(key, missing) != ours.get(key, missing)]
    return Compared(
        len(keys), tuple(f"{_words(key)}: {_value(truth, key)}, not {_value(ours, key)}" for key in differ)
    )


def _words(key: object) -> str:
    return " ".join(map(str, key)) if isinstance(key, tuple) else str(key)


def _value(values: Mapping[Any, object], key: object) -> str:
    value = values.get(key, "nothing")
    return value.describe() if isinstance(value, Unknown) and hasattr(value, "describe") else str(value)


def compare_lists(what: str, truth: Iterable[object], ours: Iterable[object]) -> Compared:
    """Compare two lists by position."""
    return compare(
        {(what, number): value for number, value in enumerate(truth, 1)},
        {(what, number): value for number, value in enumerate(ours, 1)},
    )
