"""The step of a job, from its traffic alone: right or silent, never wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from random import Random

import pytest

from probes.base.unknown import Unknown
from probes.live.model.activity import step_text
from probes.live.model.sample import JobStep, StepPart
from probes.live.step_clock.clock import FAST, SLOW, Series, StepClock
from tests.support.simulated_traffic import (
    LINE,
    Piece,
    Reading,
    beside,
    buckets,
    by_hand,
    constant,
    interrupted,
    pipeline,
    poisson,
    readings,
    reinforcement,
    steps,
    until,
    wandering,
)
from tests.support.tiers import share

JOBS: dict[str, Callable[[Random, float], Iterator[Piece]]] = {
    "plain": steps,
    "jitter": lambda random, period: steps(random, period, jitter=0.05),
    "buckets": buckets,
    "pipeline": lambda random, period: pipeline(random, period, 0.15),
    "pipeline that sends much": lambda random, period: pipeline(random, period, 0.6),
    "little network": lambda random, period: steps(random, period, 0.05),
    "mostly network": lambda random, period: steps(random, period, 0.85),
    "checkpoints": lambda random, period: interrupted(random, steps(random, period), 20, 30.0),
    "evaluations": lambda random, period: interrupted(
        random, steps(random, period), 30, 0.0, shorter=0.3 * period
    ),
    "beside another job": lambda random, period: beside(steps(random, period), 0.3, random),
}
PERIODS = (0.6, 0.9, 1.4, 2.2, 3.3, 4.1, 5.7, 8.3, 11.0, 17.2, 23.9, 45.7, 58.9)
USUAL = (("plain", 2.2), ("pipeline that sends much", 8.3), ("jitter", 17.2))
WITHOUT_STEP = (poisson, wandering, constant, by_hand)


def watch(read: list[Reading], clock: StepClock | None = None) -> list[tuple[float, JobStep]]:
    """Return each step that is said, second by second, and when."""
    clock = clock or StepClock("mlx5_0")
    said: list[tuple[float, JobStep]] = []
    first = 0
    for second in range(int(read[0][0]) + 1, int(read[-1][0]) + 1):
        last = first
        while last < len(read) and read[last][0] <= second:
            last += 1
        step = clock.update(read[first:last], float(second), 1.7e9 + second)
        first = last
        if not isinstance(step, Unknown):
            said.append((float(second), step))
    return said


def job(name: str, period: float, seconds: float = 760.0, seed: int = 0) -> list[Reading]:
    random = Random(f"{name} {period} {seed}")
    return readings(JOBS[name](random, period), seconds, random)


@pytest.mark.parametrize(
    ("name", "period"),
    [*USUAL, *(pytest.param(*case, marks=pytest.mark.slow) for case in share(product(JOBS, PERIODS), 2, 6))],
)
def test_the_step_of_a_job_is_right(name: str, period: float) -> None:
    said = watch(job(name, period))
    wrong = [(at, step.seconds) for at, step in said if abs(step.seconds / period - 1) > 0.05]
    assert not wrong
    assert said


@pytest.mark.slow
@pytest.mark.parametrize("kind", WITHOUT_STEP)
def test_traffic_without_a_period_has_no_step(kind: Callable[[Random], Iterator[Piece]]) -> None:
    random = Random(kind.__name__)
    clock = StepClock("mlx5_0")
    assert watch(readings(kind(random), 960, random), clock) == []
    assert isinstance(clock.step, Unknown)
    assert "the traffic has no steady period" in str(clock.step)


@pytest.mark.parametrize("period", [0.7, 2.2, 6.6, 17.2])
def test_one_reading_a_second_says_nothing(period: float) -> None:
    random = Random(period)
    clock = StepClock("mlx5_0")
    assert watch(readings(steps(random, period), 900, random, interval=1.0), clock) == []


def test_updates_between_rollouts_are_bursts_and_no_step() -> None:
    random = Random(3)
    said = watch(readings(reinforcement(random), 900, random))
    assert said
    assert all(abs(step.seconds - 2.2) < 0.1 and not step.is_steady for _, step in said)
    assert step_text(said[-1][1], 1.7e9).startswith("bursts repeat every 2.2 s, in ")


def slower(period: float, by: float, part: str, seed: int = 0) -> list[Reading]:
    """Return a job whose step takes longer by a share after 30 minutes."""
    random = Random(f"{period} {by} {part} {seed}")
    sends = 0.25 * period + (by * period if part == "network" else 0.0)
    longer = period * (1 + by)
    after = steps(random, longer, sends / longer, 0.02, LINE * 0.25 * period / sends)
    before = steps(random, period, 0.25, 0.02)
    both = (interrupted(random, pieces, 40, 20.0) for pieces in (before, after))
    return readings(until(1800, *both), 2820, random)


SLOWER = [
    (period, longer, part)
    for period in (1.4, 5.7, 17.2, 45.7)
    for longer in (0.08, 0.10, 0.23, 0.5)
    for part in ("network", "rest")
]


@pytest.mark.parametrize(
    ("period", "by", "part"),
    [(5.7, 0.23, "network"), *(pytest.param(*case, marks=pytest.mark.slow) for case in share(SLOWER, 2, 7))],
)
def test_a_step_that_takes_longer_is_found_with_the_part_that_grew(
    period: float, by: float, part: str
) -> None:
    longer = [
        (at, step) for at, step in watch(slower(period, by, part)) if step.longer_than and step.is_steady
    ]
    assert longer
    at, step = longer[-1]
    assert longer[0][0] > 1800
    assert longer[0][0] - 1800 <= (300 if period < 6 else 420 if period < 20 else 900)
    assert step.share_longer == pytest.approx(by, abs=0.03)
    usual = step.longer_than
    assert usual is not None
    assert usual.seconds == pytest.approx(period, rel=0.03)
    assert 1.7e9 + 1700 < usual.until < 1.7e9 + at
    if by * period > 1.0:
        grown = StepPart.NETWORK if part == "network" else StepPart.REST
        assert usual.grown in (grown, StepPart.BOTH)


@pytest.mark.slow
def test_a_job_that_moves_other_amounts_of_data_is_not_slower() -> None:
    random = Random(9)
    first, then = steps(random, 5.7, 0.25), steps(random, 8.0, 0.35)
    said = watch(readings(until(1200, first, then), 2400, random))
    assert said[-1][1].seconds == pytest.approx(8.0, rel=0.02)
    assert not any(step.longer_than for _, step in said)


@pytest.mark.slow
def test_a_step_that_is_as_short_as_before_is_no_longer_slower() -> None:
    random = Random(4)
    slow = steps(random, 7.0, 0.25 * 5.7 / 7.0)
    pieces = until(900, steps(random, 5.7), until(900, slow, steps(random, 5.7)))
    said = watch(readings(pieces, 2700, random))
    assert any(step.longer_than for _, step in said)
    assert said[-1][1].longer_than is None


@pytest.mark.slow
@pytest.mark.parametrize("period", share([17.2, 1.4, 58.9], 0, 3))
def test_hours_without_a_change_show_none(period: float) -> None:
    random = Random(period)
    pieces = interrupted(
        random, interrupted(random, steps(random, period, jitter=0.03), 20, 30.0), 70, 0.0, 2, 0.3
    )
    said = watch(readings(pieces, 3 * 3600, random))
    assert said
    assert not any(step.longer_than for _, step in said)
    assert all(abs(step.seconds / period - 1) < 0.05 for _, step in said)


def test_readings_are_rare_once_the_step_is_known() -> None:
    """A long step is followed twice a second; without a step, gdrtop reads fast for a minute in five."""
    clock = StepClock("mlx5_0")
    watch(job("plain", 17.2), clock)
    assert clock.interval(761.0) == SLOW
    random = Random(1)
    clock = StepClock("mlx5_0")
    every = readings(poisson(random), 2100, random)
    fast = 0
    for second in range(1, 2100):
        is_fast = clock.interval(float(second)) == FAST
        fast += is_fast and second > 1500
        clock.update(every[10 * second - 9 : 10 * second + 1 : 1 if is_fast else 5], second, 1.7e9 + second)
    assert 0.15 < fast / 600 < 0.3


def test_a_reset_a_gap_and_late_readings_make_no_rates_of_their_own() -> None:
    series = Series()
    series.add((number / 10, 1e6 * number) for number in range(300))
    series.add((30 + number / 10, 1e6 * number) for number in range(100))  # the NIC was reset
    rates = series.rates(0.1, 60, 40)
    assert len(rates) == 99
    assert series.rates(0.1, 60, 100) == []  # no reading for a minute
    assert all(rate == pytest.approx(1e7) for rate in rates)
    series.add((70 + number / 10, 1e9 + 1e6 * number) for number in range(100))  # 30 s later
    assert len(series.rates(0.1, 60, 80)) == 99
    series.add((79.9 + number, 1.1e9 + 1e7 * number) for number in range(1, 30))  # one a second
    assert series.rates(0.1, 60, 109) == []
    late = Series()
    late.add((number / 10 + (0.3 if number % 20 == 7 else 0.0), 1e6 * number) for number in range(0, 600, 4))
    assert len(late.rates(0.1, 60, 60)) == 0  # 2.5 a second are too few
    assert len(late.rates(0.5, 60, 60)) >= 118


def test_a_wall_clock_that_is_set_changes_no_step() -> None:
    clock = StepClock("mlx5_0")
    read = job("plain", 2.2, 400)
    for second in range(1, 400):
        clock.update([each for each in read if second - 1 < each[0] <= second], second, 5e9 - 3600 * second)
    assert isinstance(clock.step, JobStep)
    assert clock.step.seconds == pytest.approx(2.2, rel=0.02)


def test_a_job_that_waits_or_has_ended_has_no_step_until_it_goes_on() -> None:
    random = Random(8)
    waits = until(30, iter([(30.0, 0.0)]), steps(random, 2.2))
    clock = StepClock("mlx5_0")
    said = watch(readings(until(250, steps(random, 2.2), waits), 400, random), clock)
    moments = [at for at, _ in said]
    assert not [at for at in moments if 263 <= at < 281]
    assert moments[0] < 250
    assert moments[-1] == 400
    old = clock.update((), 470.0, 1.7e9 + 470)
    assert "the counters were not read in time" in str(old)
    assert "the NIC carries no traffic now" in str(
        clock.update([(480.0, 1e15), (500.0, 1e15)], 500.0, 1.7e9 + 500)
    )


def test_old_readings_are_not_estimated_again() -> None:
    clock = StepClock("mlx5_0")
    read = job("plain", 2.2, 70)
    watch(read, clock)
    for second in range(71, 400):
        clock.update((), float(second), 1.7e9 + second)
    assert isinstance(clock.step, Unknown)
