"""The search for the variables that matter, with runs that a rule answers."""

from collections.abc import Callable, Iterator
from itertools import cycle

import pytest

from probes.bandwidth.planning.bisection import Outcome, Trial, run_counts, search
from widgets.bandwidth.bisection import verdict

NAMES = tuple("abcdefgh")
Rule = Callable[[frozenset[str]], float | None]


def answered(rule: Rule, names: tuple[str, ...] = NAMES, noise: Iterator[float] | None = None) -> Outcome:
    outcome, _ = answered_in(rule, names, noise)
    return outcome


def answered_in(
    rule: Rule, names: tuple[str, ...] = NAMES, noise: Iterator[float] | None = None
) -> tuple[Outcome, list[Trial]]:
    running, trials = search(names), []
    trial = next(running)
    while True:
        trials.append(trial)
        figure = rule(trial.of_job)
        if figure is not None and noise is not None:
            figure *= next(noise)
        try:
            trial = running.send(figure)
        except StopIteration as end:
            return end.value, trials


@pytest.mark.parametrize("name", NAMES)
def test_one_variable_is_found_among_others_within_the_runs_that_were_announced(name: str) -> None:
    outcome, trials = answered_in(lambda of_job: 100.0 if name in of_job else 390.0)
    assert [cause.names for cause in outcome.causes] == [(name,)]
    assert outcome.causes[0].gbps == 100.0
    assert outcome.rest_gbps == 390.0
    _, least, most = run_counts(NAMES)
    assert least <= len(trials) <= most


def test_two_variables_that_cost_something_each_are_both_found_the_worse_one_first() -> None:
    def rule(of_job: frozenset[str]) -> float:
        return 390.0 * (0.4 if "g" in of_job else 1.0) * (0.8 if "b" in of_job else 1.0)

    outcome = answered(rule)
    assert [cause.names for cause in outcome.causes] == [("g",), ("b",)]
    assert outcome.rest == ("a", "c", "d", "e", "f", "h")


def test_two_variables_that_cost_something_only_together_are_one_cause() -> None:
    outcome = answered(lambda of_job: 100.0 if {"b", "g"} <= of_job else 390.0)
    assert [set(cause.names) for cause in outcome.causes] == [{"b", "g"}]


def test_a_variable_that_makes_the_job_faster_is_found_too() -> None:
    outcome = answered(lambda of_job: 390.0 if "c" in of_job else 200.0)
    assert not outcome.job_is_slower
    assert [cause.names for cause in outcome.causes] == [("c",)]


def test_what_runs_of_the_same_settings_differ_by_is_no_difference() -> None:
    noise = iter((1.0, 0.95, 0.9, 1.0))
    outcome, trials = answered_in(lambda _: 390.0, noise=noise)
    assert len(trials) == 4
    assert not outcome.differs
    assert outcome.causes == ()
    assert outcome.least_difference > 0.1


def test_a_difference_that_noise_may_explain_is_no_clearance_of_the_job() -> None:
    outcome = answered(lambda of_job: 120.0 if of_job else 400.0, noise=iter((1.0, 1.0, 0.65, 1.0)))
    assert outcome.trouble == "two runs with the same settings differ by 35 %"
    assert "make no difference" not in verdict(outcome, ())


def test_noise_does_not_hide_that_the_job_fails() -> None:
    outcome = answered(lambda of_job: None if "d" in of_job else 400.0, noise=cycle((1.0, 0.65)))
    assert [cause.names for cause in outcome.causes] == [("d",)]
    assert verdict(outcome, ()) == "d makes the test fail: 330 Gb/s with the recommended values."


def test_recommended_values_that_fail_are_named() -> None:
    outcome = answered(lambda of_job: 300.0 if "d" in of_job else None)
    says = "The recommended value of d makes the test fail: 300 Gb/s with the job's values."
    assert verdict(outcome, ()) == says


def test_a_run_that_fails_counts_as_slow() -> None:
    outcome = answered(lambda of_job: None if "d" in of_job else 390.0)
    assert [(cause.names, cause.gbps) for cause in outcome.causes] == [(("d",), None)]


def test_runs_that_fail_with_both_settings_find_nothing() -> None:
    assert answered(lambda _: None).trouble == "the runs failed with both settings"


def test_runs_that_contradict_each_other_end_the_search() -> None:
    """What made the job slow is gone after the first four runs."""
    ends = iter((390.0, 100.0, 390.0, 100.0))
    outcome = answered(lambda _: next(ends, 390.0))
    assert outcome.causes == ()
    assert outcome.trouble.startswith("the runs contradict each other")


def test_all_variables_can_be_one_cause_together() -> None:
    outcome = answered(lambda of_job: 100.0 if len(of_job) == 8 else 390.0)
    assert outcome.trouble == ""
    assert len(outcome.causes[0].names) == 8
