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
    unknown: int = 0  # that gdrtop says it does not know

    @property
    def agreed(self) -> int:
        """How many are the same."""
        return self.values - len(self.differences) - self.unknown

    def __add__(self, other: Compared) -> Compared:
        return Compared(
            self.values + other.values, self.differences + other.differences, self.unknown + other.unknown
        )


def compare(truth: Mapping[Any, object], ours: Mapping[Any, object]) -> Compared:
    """Compare by key; a value that only one side has differs."""
    missing = object()
    keys = dict.fromkeys((*truth, *ours))
    differ = [key for key in keys if truth.get(key, missing) != ours.get(key, missing)]
    unknown = [key for key in differ if isinstance(ours.get(key), Unknown)]
    texts = (
        f"{_words(key)}: {truth.get(key, 'nothing')}, not {ours.get(key, 'nothing')}"
        for key in differ
        if key not in unknown
    )
    return Compared(len(keys), tuple(texts), len(unknown))


def _words(key: object) -> str:
    return " ".join(map(str, key)) if isinstance(key, tuple) else str(key)


def compare_lists(what: str, truth: Iterable[object], ours: Iterable[object]) -> Compared:
    """Compare two lists by position."""
    return compare(
        {(what, number): value for number, value in enumerate(truth, 1)},
        {(what, number): value for number, value in enumerate(ours, 1)},
    )
