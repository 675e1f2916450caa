"""The one sample that stands for a whole test, and how steadily data went.

Of a test that prints a row a second it is the mean: what went through in all, so that seconds in which
nothing did (pauses by PFC, retransmissions, a link that flaps) count. The rows at the beginning do not:
perftest's first one, and those at 0 after it, for on a slow link seconds pass before the first of its 128
messages under way is done. Of a run over all sizes it is the fastest row, of latencies that of the smallest
size. nvbandwidth measures each direction by a test of its own, and a GPU's link is as good as the worse one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, median

from probes.bandwidth.model.meaning import Settings
from probes.bandwidth.model.rating import best_of
from probes.bandwidth.tools.other_commands import NvbandwidthSettings
from probes.bandwidth.tools.perftest_command import PerftestSettings
from probes.bandwidth.tools.samples import Sample

_STALLED = 0.5  # of what goes through in most seconds


def headline(samples: Sequence[Sample], settings: Settings) -> Sample | None:
    """The sample that stands for a test; None: nothing was measured."""
    if _is_endless(settings):
        return _mean(_counted(samples))
    if isinstance(settings, NvbandwidthSettings):
        best = [best_of(one for one in samples if one.what == test) for test in settings.tests]
        return min(filter(None, best), key=lambda one: one.gbps or 0.0, default=None)
    buses = [one for one in samples if one.bus_gbps is not None]
    if buses:
        return max(buses, key=lambda one: one.bus_gbps or 0.0)
    return best_of(samples) or min(samples, key=lambda one: one.size_bytes or 0, default=None)


def stalls(samples: Sequence[Sample], settings: Settings) -> str:
    """As "in 4 of 9 seconds less than half of that went through"; "" where data went steadily."""
    rows = [one.gbps or 0.0 for one in _counted(samples)] if _is_endless(settings) else []
    going = [gbps for gbps in rows if gbps > 0.0]
    stalled = sum(gbps < _STALLED * median(going) for gbps in rows) if going else 0
    if not stalled:
        return ""
    return f"in {stalled} of {len(rows)} seconds less than half of what goes in others went through"


def _is_endless(settings: Settings) -> bool:
    return isinstance(settings, PerftestSettings) and settings.is_endless


def _counted(samples: Iterable[Sample]) -> list[Sample]:
    """The rows without the beginning, which is a third of them at most."""
    rows = [one for one in samples if one.gbps is not None]
    begun = next((number for number, one in enumerate(rows) if one.gbps), len(rows))
    return rows[min(max(1, begun), max(1, len(rows) // 3)) :] or rows


def _mean(rows: Sequence[Sample]) -> Sample | None:
    if not rows:
        return None
    gbps = fmean(one.gbps or 0.0 for one in rows)
    nearest = min(rows, key=lambda one: abs((one.gbps or 0.0) - gbps))
    rates = [one.messages_per_second for one in rows if one.messages_per_second is not None]
    return replace(nearest, gbps=gbps, messages_per_second=fmean(rates) if rates else None)
