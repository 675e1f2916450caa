"""Communicators whose operation counts are unequal and do not move.

A count is what a rank has launched, not what has completed, and a healthy job has unequal counts most of the
time. Only the same unequal counts over several reports show that ranks wait for one that launches nothing.
RAS counts no operations in CUDA graphs, and no send, receive, all-to-all, gather or scatter. Equal counts are
not in the text report, so nothing is said about them.
"""

from __future__ import annotations

from dataclasses import dataclass

from probes.base.frozen import frozen
from probes.live.ras.policy import LEAST_INTERVAL_SECONDS
from probes.nccl.ras.facts import Communicator, OperationCounts, RasRank, RasReport, RasSet

_RUNNING = "RUNNING"
_Counts = tuple[tuple[str, tuple[tuple[str, int, tuple[int, ...]], ...]], ...]


@frozen
class Behind:
    """Ranks of a stalled communicator that have launched the fewest operations."""

    fewer: int  # operations, than the ranks that have launched the most
    count: int  # number of ranks
    ranks: tuple[RasRank, ...]  # () if RAS does not name them


@frozen
class Stall:
    """A communicator in which nothing has moved, with unequal counts."""

    hash: str
    seconds: float  # between the first and the last report with these counts
    reports: int
    behind: Behind


@dataclass
class _Series:
    counts: _Counts
    began_at: float
    latest_at: float
    reports: int
    behind: Behind | None


class RasHistory:
    """Reports of one port over time."""

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}

    def add(self, report: RasReport, at: float, is_one_job: bool) -> tuple[Stall, ...]:
        """Add a complete report and return the stalls in it, the longest one first.

        `at`: seconds of a clock that never goes back. Without `is_one_job`, another job may have answered,
        and a communicator that is missing in the report may be unchanged.
        """
        if not report.is_complete:
            return ()
        seen: dict[str, _Series] = {}
        for one in report.communicators:
            if not one.counts or not _is_running(report, one):
                continue
            counts = _counts(one)
            series = self._series.get(one.hash)
            if series is None or series.counts != counts or at < series.latest_at:
                series = _Series(counts, at, at, 0, _behind(one.counts))
            series.latest_at, series.reports = at, series.reports + 1
            seen[one.hash] = series
        changed = {one.hash for one in report.communicators} - set(seen)
        kept = {} if is_one_job else {key: one for key, one in self._series.items() if key not in changed}
        self._series = {**kept, **seen}
        stalls = (
            Stall(key, one.latest_at - one.began_at, one.reports, one.behind)
            for key, one in seen.items()
            if one.behind is not None
            and one.reports > 1
            and one.latest_at - one.began_at >= LEAST_INTERVAL_SECONDS
        )
        return tuple(sorted(stalls, key=lambda stall: (-stall.seconds, -stall.behind.fewer)))


def _is_running(report: RasReport, one: Communicator) -> bool:
    """Return whether all ranks are initialized and not being destroyed; errors and missing ranks say more."""
    number = one.name.partition("-")[0]
    group = next((group for group in report.groups if str(group.number) == number), None)
    return group is not None and group.status == _RUNNING and not one.statuses


def _counts(one: Communicator) -> _Counts:
    """Return what must stay the same, in an order that does not depend on the report's."""
    return tuple(
        sorted(
            (
                counts.operation,
                tuple(sorted(map(_values, counts.sets))),
            )
            for counts in one.counts
        )
    )


def _values(one: RasSet) -> tuple[str, int, tuple[int, ...]]:
    return one.value, one.count, tuple(sorted(rank.rank for rank in one.ranks))


def _behind(all_counts: tuple[OperationCounts, ...]) -> Behind | None:
    """Return the ranks that are the furthest behind, over all types of operations."""
    fewer: dict[int, int] = {}
    names: dict[int, RasRank] = {}
    largest: Behind | None = None
    for counts in all_counts:
        most = max(counts.counts)
        lowest = min(counts.sets, key=lambda one: int(one.value))
        gap = most - int(lowest.value)
        if gap and (largest is None or gap > largest.fewer):
            largest = Behind(gap, lowest.count, lowest.ranks)
        for one in counts.sets:
            for rank in one.ranks:
                names.setdefault(rank.rank, rank)
                fewer[rank.rank] = fewer.get(rank.rank, 0) + most - int(one.value)
    # A set that RAS does not name may be further behind than all ranks that it names.
    if largest is None or not largest.ranks or not fewer:
        return largest
    most_behind = max(fewer.values())
    ranks = tuple(names[rank] for rank in sorted(fewer) if fewer[rank] == most_behind)
    return Behind(most_behind, len(ranks), ranks)
