"""The runs of an interrupted bisection that are taken over, and their number on the screen."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from probes.bandwidth.model.result import Result
from tests.support.sample_results import MORNING, failed, result
from tui.bandwidth.bisection_runs import BisectionRun, BisectionRuns

NAMES = ("a", "b", "c")
SLOW = frozenset("b")


def planned(of_job: frozenset[str]) -> Any:
    command = SimpleNamespace(argv=("test", *sorted(of_job)))
    return SimpleNamespace(processes=(SimpleNamespace(command=command),))


def measured(of_job: frozenset[str], at: float) -> Result:
    """Return the result of a run; with the job's value of b, it fails."""
    commands = (" ".join(("test", *sorted(of_job))),)
    if SLOW & of_job:
        return replace(failed(), taken_at=at, commands=commands)
    return result(390.0, taken_at=at, commands=commands)


def runs_until(count: int) -> tuple[list[Result], BisectionRuns]:
    """Measure so many runs, or all; return the results and the search."""
    shown: list[BisectionRun] = []
    runs, results = BisectionRuns(NAMES, planned, shown.append), []
    test: Any = runs.next_test(())
    while test is not None and len(results) < count:
        of_job = frozenset(test.processes[0].command.argv[1:])
        results.append(measured(of_job, MORNING + len(results)))
        test = runs.next_test(results)
    assert [run.result for run in shown] == results
    return results, runs


def taken_over(saved: list[Result], booted_at: float = 0.0) -> tuple[int, int]:
    """Return the runs that are spared by what is said, and by what is shown."""
    shown: list[BisectionRun] = []
    runs = BisectionRuns(NAMES, planned, shown.append)
    place = (saved[0].node, saved[0].machine, saved[0].origin)
    said = runs.take_over(saved, place, MORNING + 60, booted_at)
    runs.next_test(())
    return said, len(shown)


@pytest.mark.parametrize("count", [1, 3, 5])
def test_runs_that_failed_count_as_measured(count: int) -> None:
    results, _ = runs_until(count)
    assert taken_over(results) == (count, count)


def test_runs_from_before_the_boot_are_measured_again() -> None:
    results, _ = runs_until(5)
    assert taken_over(results, booted_at=MORNING + 30) == (0, 0)


def test_a_bisection_that_was_measured_to_its_end_begins_again() -> None:
    results, runs = runs_until(100)
    assert runs.outcome is not None
    assert [cause.names for cause in runs.outcome.causes] == [("b",)]
    assert taken_over(results) == (0, 0)
