"""The one sample that stands for a whole test, and how steadily data flowed.

For a test that prints a row a second it is the mean of all rows, so that seconds without data (PFC pauses,
retransmissions, a flapping link) count. The rows at the beginning do not count: perftest's first one, and
the rows at 0 after it, because on a slow link it takes seconds until the first of 128 messages in flight is
done. For a run over all sizes it is the fastest row, for latencies the row of the smallest size.
nvbandwidth measures each direction by a test of its own, and a GPU's link is as good as its worse
direction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, median

from probes.bandwidth.model.planned_test import Settings
from probes.bandwidth.model.rating import best_of
from probes.bandwidth.model.samples import Sample

_STALLED = 0.5  # of what flows in most seconds


def headline(samples: Sequence[Sample], settings: Settings) -> Sample | None:
    """Return the sample that stands for a test; None if nothing was measured."""
    if settings.is_endless:
        return _mean(_counted(samples))
    if settings.required_tests:
        best = [
            best_of(sample for sample in samples if sample.what == test) for test in settings.required_tests
        ]
        return min(filter(None, best), key=lambda sample: sample.gbps or 0.0, default=None)
    collectives = [sample for sample in samples if sample.bus_gbps is not None]
    if collectives:
        return max(collectives, key=lambda sample: sample.bus_gbps or 0.0)
    return best_of(samples) or min(samples, key=lambda sample: sample.size_bytes or 0, default=None)


def stalls(samples: Sequence[Sample], settings: Settings) -> str:
    """Return "in 4 of 9 seconds less than half …"; "" if data flowed steadily."""
    rows = [sample.gbps or 0.0 for sample in _counted(samples)] if settings.is_endless else []
    flowing = [gbps for gbps in rows if gbps > 0.0]
    stalled = sum(gbps < _STALLED * median(flowing) for gbps in rows) if flowing else 0
    if not stalled:
        return ""
    return f"in {stalled} of {len(rows)} seconds, the bandwidth was less than half of the median"


def _counted(samples: Iterable[Sample]) -> list[Sample]:
    """Return the rows without the beginning, which is at most a third of them."""
    rows = [sample for sample in samples if sample.gbps is not None]
    first = next((number for number, sample in enumerate(rows) if sample.gbps), len(rows))
    return rows[min(max(1, first), max(1, len(rows) // 3)) :] or rows


def _mean(rows: Sequence[Sample]) -> Sample | None:
    if not rows:
        return None
    gbps = fmean(sample.gbps or 0.0 for sample in rows)
    nearest = min(rows, key=lambda sample: abs((sample.gbps or 0.0) - gbps))
    rates = [sample.messages_per_second for sample in rows if sample.messages_per_second is not None]
    return replace(nearest, gbps=gbps, messages_per_second=fmean(rates) if rates else None)
