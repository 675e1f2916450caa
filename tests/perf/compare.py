"""What got slower from one `make bench JSON=file` to another, beyond the noise that both measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_LEAST_SHARE = 0.05  # a difference below this is nothing that anybody would notice


def spread(values: Sequence[float]) -> float:
    """Return the noise of a measurement: from the least of its values to their median, as a share."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2] / ordered[0] - 1 if ordered and ordered[0] > 0 else 0.0


def compare(before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]]) -> list[str]:
    """Return a sentence for each measurement whose least value has changed by more than the noise of both."""
    told: list[str] = []
    for what, values in after.items():
        old = before.get(what)
        if not old or not values or min(old) <= 0:
            continue
        noise = max(_LEAST_SHARE, spread(old) + spread(values))
        ratio = min(values) / min(old)
        if ratio > 1 + noise or ratio < 1 / (1 + noise):
            word = "more" if ratio > 1 else "less"
            told.append(f"{what}: × {ratio:.2f}, {word} than the noise of ± {100 * noise:.0f} % explains")
    return told


def read_rows(path: str) -> dict[str, list[float]]:
    """Return the values of each row that has some."""
    rows: list[dict[str, Any]] = json.loads(Path(path).read_text(encoding="utf-8"))["rows"]
    return {row["what"]: row["values"] for row in rows if row["values"]}


def print_comparison(before: str, after: str) -> bool:
    """Print what has changed; return whether something got slower."""
    told = compare(read_rows(before), read_rows(after))
    print("\n".join(told) or "Nothing has changed beyond the noise.")
    return any(" more than " in line for line in told)
