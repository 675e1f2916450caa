"""Find the variables that make a job slower than other values of them, with few runs of a benchmark.

QuickXplain (Junker, AAAI 2004) finds a minimal set whose slow values make a run slow: a cause among n
variables takes about 2 log2(n) runs. A run is slow if it is nearer to the slow than to the fast settings.
What the other variables cost is measured then, and searched in the same way.

A search is a generator: it yields the trial to measure, and takes its Gb/s, or None for a run that failed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import NamedTuple

from probes.bandwidth.model.rating import LIKE_HOST
from probes.base.frozen import frozen

LEAST_DIFFERENCE = 1 - LIKE_HOST
"""Runs with the same settings differ by less."""
_TIMES_NOISE = 3.0
_REPEATS = 2  # of each end: their difference is the noise


class Trial(NamedTuple):
    """One run: these variables as in the job, and all others as recommended."""

    of_job: frozenset[str]
    repeat: int = 0  # 1: the same settings for the second time


@frozen
class Cause:
    """A minimal set of variables that costs bandwidth."""

    names: tuple[str, ...]  # several: none of them alone
    gbps: float | None  # with the slow values of these, and the fast values of all others; None: it fails


@frozen
class Outcome:
    """What a search has found; Gb/s are means, None where a run failed."""

    recommended_gbps: float | None
    job_gbps: float | None
    noise: float  # largest share by which two runs with the same settings differ
    causes: tuple[Cause, ...] = ()  # the one that costs most first
    rest: tuple[str, ...] = ()  # the variables that are no cause
    rest_gbps: float | None = None  # with the slow values of these alone
    trouble: str = ""  # why the search ended early, a sentence without a full stop

    @property
    def job_is_slower(self) -> bool:
        """Return whether the job's values are the slow ones."""
        return (self.job_gbps or 0.0) < (self.recommended_gbps or 0.0)

    @property
    def least_difference(self) -> float:
        """The share of bandwidth from which on a difference counts."""
        return max(LEAST_DIFFERENCE, _TIMES_NOISE * self.noise)

    @property
    def difference(self) -> float:
        """The share by which the job's values and the recommended ones differ; 1: one of them fails."""
        ends = (self.recommended_gbps or 0.0, self.job_gbps or 0.0)
        return 1 - min(ends) / max(ends) if any(ends) else 0.0

    @property
    def differs(self) -> bool:
        """Return whether they differ by more than noise; runs that fail are no noise."""
        return self.difference == 1.0 or self.difference > self.least_difference


Search = Generator[Trial, float | None, Outcome]


def search(names: Sequence[str]) -> Search:
    """Return a search among variables whose values differ."""
    return _Bisection(tuple(names)).run()


def run_counts(names: Sequence[str]) -> tuple[int, int, int]:
    """Return the runs if no variable matters, and the least and the most if one of them does."""
    counts = [_runs(names, {name}) for name in names]
    return _runs(names, set()), min(counts), max(counts)


def _runs(names: Sequence[str], slow: set[str]) -> int:
    """Return how many runs a search takes in which these variables make the job slow."""
    running, count = search(names), 0
    trial = next(running)
    while True:
        count += 1
        try:
            trial = running.send(50.0 if slow & trial.of_job else 100.0)
        except StopIteration:
            return count


class _Bisection:
    """One search. Sets are of variables with their slow values, whichever end is slow."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names, self._all = names, frozenset(names)
        self._figures: dict[frozenset[str], float | None] = {}  # by the variables with the job's values
        self._job_is_slow = True
        self._limit = 0.0  # Gb/s below which a run is slow

    def run(self) -> Search:
        ends: dict[frozenset[str], list[float | None]] = {frozenset(): [], self._all: []}
        for repeat in range(_REPEATS):
            for end, figures in ends.items():
                figures.append((yield Trial(end, repeat)))
        recommended, job = ends.values()
        self._figures = {end: _mean(figures) for end, figures in ends.items()}
        measured = [[figure or 0.0 for figure in figures] for figures in ends.values()]
        noise = max(1 - min(each) / max(each) if any(each) else 0.0 for each in measured)
        outcome = Outcome(_mean(recommended), _mean(job), noise, rest=self._names)
        trouble = next(
            (
                f"with {whose} values, one of two runs failed"
                for whose, figures in (("the recommended", recommended), ("the job's", job))
                if any(figures) and None in figures
            ),
            "" if any((*recommended, *job)) else "the runs failed with both settings",
        )
        if not trouble and not outcome.differs and outcome.difference > LEAST_DIFFERENCE:
            trouble = f"two runs with the same settings differ by {100 * noise:.0f} %"
        if trouble:
            return replace(outcome, trouble=trouble)
        return (yield from self._causes(outcome)) if outcome.differs else outcome

    def _causes(self, outcome: Outcome) -> Search:
        """Find one cause after the other, until the rest is as fast as the fast end."""
        self._job_is_slow = outcome.job_is_slower
        ends = (outcome.recommended_gbps or 0.0, outcome.job_gbps or 0.0)
        fast, slow = max(ends), min(ends)
        rest, rest_gbps = self._names, None
        causes: list[Cause] = []
        while rest and (not rest_gbps or rest_gbps < fast * (1 - outcome.least_difference)):
            self._limit = (fast + (slow if not causes else rest_gbps or 0.0)) / 2
            found = yield from self._minimal(frozenset(), False, rest)
            if len(found) == len(self._names) > 1:  # no part is slow: are all of them still?
                alone = yield Trial(self._of_job(self._all), _REPEATS)
            else:
                alone = yield from self._figure(frozenset(found))
            if (alone or 0.0) >= self._limit:
                trouble = "the runs contradict each other: the variables act together, or the node changes"
                return replace(outcome, causes=tuple(causes), rest=rest, trouble=trouble)
            causes.append(Cause(found, alone))
            rest = tuple(name for name in rest if name not in found)
            rest_gbps = (yield from self._figure(frozenset(rest))) if rest else None
        causes.sort(key=lambda cause: cause.gbps or 0.0)
        return replace(outcome, causes=tuple(causes), rest=rest, rest_gbps=rest_gbps)

    def _minimal(
        self, background: frozenset[str], was_added: bool, candidates: tuple[str, ...]
    ) -> Generator[Trial, float | None, tuple[str, ...]]:
        """Return the candidates that a run needs, beside those of the background, to be slow."""
        if was_added and ((yield from self._figure(background)) or 0.0) < self._limit:
            return ()
        if len(candidates) == 1:
            return candidates
        half = len(candidates) // 2
        first, second = candidates[:half], candidates[half:]
        right = yield from self._minimal(background | {*first}, True, second)
        left = yield from self._minimal(background | {*right}, bool(right), first)
        return (*left, *right)

    def _of_job(self, slow: frozenset[str]) -> frozenset[str]:
        return slow if self._job_is_slow else self._all - slow

    def _figure(self, slow: frozenset[str]) -> Generator[Trial, float | None, float | None]:
        of_job = self._of_job(slow)
        if of_job not in self._figures:
            self._figures[of_job] = yield Trial(of_job)
        return self._figures[of_job]


def _mean(figures: Sequence[float | None]) -> float | None:
    measured = [figure for figure in figures if figure is not None]
    return sum(measured) / len(measured) if measured else None
