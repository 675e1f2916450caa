"""A series that stops early, because a job has started that it would affect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probes.bandwidth.model.planned_test import LeftOut, Series

_NOT_BEGUN = "not started: running jobs would have been affected"


def abort_reason(felt: Sequence[str]) -> str:
    """The reason in a sentence; "" where nobody feels it. `felt` has a line each."""
    if not felt:
        return ""
    return f"running jobs would now be affected: {felt[0]}" + (
        f" and {len(felt) - 1} more" if len(felt) > 1 else ""
    )


def with_not_started(series: Series, begun: int, why: str) -> Series:
    """The series with all tests but the first so many among what is left out; `why` is told once."""
    reasons = (f"not started: {why}", _NOT_BEGUN)
    late = [LeftOut(test.title, reasons[number > 0]) for number, test in enumerate(series.tests[begun:])]
    return replace(series, left_out=(*series.left_out, *late))
