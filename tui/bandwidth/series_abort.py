"""A series that stops early because it would affect a job that has started meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probes.bandwidth.model.planned_test import LeftOut, Series

_NOT_STARTED = "not started: running jobs would have been affected"


def abort_reason(affected: Sequence[str]) -> str:
    """Return why the next test does not start, as a sentence; "" if no job is affected."""
    if not affected:
        return ""
    more = f" and {len(affected) - 1} more" if len(affected) > 1 else ""
    return f"running jobs would now be affected: {affected[0]}{more}"


def with_not_started(series: Series, started: int, reason: str) -> Series:
    """Return the series with the tests that were not started left out; only the first states the reason."""
    late = tuple(
        LeftOut(test.title, _NOT_STARTED if number else f"not started: {reason}")
        for number, test in enumerate(series.tests[started:])
    )
    return replace(series, left_out=(*series.left_out, *late))
