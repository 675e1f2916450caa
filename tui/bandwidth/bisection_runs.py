"""The runs of a bisection: the next test by the results so far, and those of an interrupted bisection."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from probes.bandwidth.model.planned_series import PlannedTest
from probes.bandwidth.model.result import Ending, Result
from probes.bandwidth.planning.bisection import Outcome, Trial, search
from probes.base.frozen import frozen

MOST_SECONDS = 12 * 3600.0
"""An older result says little about now."""


@frozen
class BisectionRun:
    """One trial that was measured."""

    trial: Trial
    result: Result
    is_earlier: bool = False  # by a bisection that was interrupted


class BisectionRuns:
    """Runs a search: `next_test` is for `BenchSession.run`."""

    def __init__(
        self,
        names: Sequence[str],
        test_of: Callable[[frozenset[str]], PlannedTest],
        on_run: Callable[[BisectionRun], object],
    ) -> None:
        """`test_of` returns the test in which these variables have the job's values."""
        self._names, self._test_of, self._on_run = names, test_of, on_run
        self._search = search(names)
        self._pending: Trial | None = None  # that the session is measuring
        self._earlier: dict[tuple[str, ...], list[Result]] = {}  # by commands, oldest first
        self.runs: list[BisectionRun] = []
        self.outcome: Outcome | None = None

    def take_over(
        self, saved: Sequence[Result], place: tuple[str, str, str], now: float, booted_at: float
    ) -> int:
        """Take the runs of a bisection that has not ended; return how many they spare.

        `saved` is oldest first; `place`: their node, machine and origin; `booted_at`: older runs
        do not count.
        """
        unfinished: dict[tuple[str, ...], list[Result]] = {}
        for result in saved:
            is_recent = max(booted_at, now - MOST_SECONDS) <= result.taken_at <= now
            if is_recent and (result.node, result.machine, result.origin) == place:
                unfinished.setdefault(result.commands, []).append(result)
        count, is_whole = self._replayed(unfinished)
        if is_whole:  # gdrtop died before it could mark the end
            return 0
        self._earlier = unfinished
        return count

    def _replayed(self, earlier: Mapping[tuple[str, ...], Sequence[Result]]) -> tuple[int, bool]:
        """Return how many trials these results answer, and whether they answer all."""
        running, count = search(self._names), 0
        trial = next(running)
        while (result := self._earlier_result(earlier, trial)) is not None:
            count += 1
            try:
                trial = running.send(gbps_of(result))
            except StopIteration:
                return count, True
        return count, False

    def _earlier_result(
        self, earlier: Mapping[tuple[str, ...], Sequence[Result]], trial: Trial
    ) -> Result | None:
        same = earlier.get(commands_of(self._test_of(trial.of_job)), ())
        return same[trial.repeat] if trial.repeat < len(same) else None

    def next_test(self, results: Sequence[Result]) -> PlannedTest | None:
        """Return the next test; None at the end, or if the last test was canceled."""
        trial: Trial | None
        if self._pending is None:
            trial = next(self._search)
        else:
            if results[-1].ending is Ending.CANCELED:
                return None
            trial = self._measured(BisectionRun(self._pending, results[-1]))
        while trial is not None:
            if (result := self._earlier_result(self._earlier, trial)) is None:
                self._pending, self._earlier = trial, {}
                return self._test_of(trial.of_job)
            trial = self._measured(BisectionRun(trial, result, is_earlier=True))
        return None

    def _measured(self, run: BisectionRun) -> Trial | None:
        self.runs.append(run)
        self._on_run(run)
        try:
            return self._search.send(gbps_of(run.result))
        except StopIteration as end:
            self.outcome = end.value
            return None


def gbps_of(result: Result) -> float | None:
    """Return the bandwidth of a run; None if it failed."""
    return result.gbps if result.ending is Ending.DONE else None


def commands_of(test: PlannedTest) -> tuple[str, ...]:
    """Return the commands of a test, as its result has them."""
    return tuple(shlex.join(process.command.argv) for process in test.processes)
