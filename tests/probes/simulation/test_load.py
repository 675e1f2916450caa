"""Counters of a simulated node at any moment, in any order."""

from __future__ import annotations

from probes.simulation.node.model.workload import SteppedTotal, Steps, Wave, changes


def test_a_total_is_the_same_whatever_was_asked_before() -> None:
    wave, steps = Wave(100.0, 0.3), changes((10.0, 0.5), (20.0, 0.0), (30.0, 2.0))
    moments = [0.0, 5.0, 10.0, 19.5, 25.0, 30.0, 90.0]
    forward, backward = SteppedTotal(wave.total, steps), SteppedTotal(wave.total, steps)
    totals = [forward(moment) for moment in moments]
    assert [backward(moment) for moment in reversed(moments)] == totals[::-1]
    assert [forward(moment) for moment in moments] == totals
    assert totals == sorted(totals)
    assert totals[1] == wave.total(5.0)
    assert totals[4] == forward(20.0)  # the factor is 0


def test_a_total_of_many_steps_forgets_the_oldest_and_is_still_the_same() -> None:
    wave, steps = Wave(100.0, 0.3), Steps(lambda number: (number + 1.0, number % 3))
    total = SteppedTotal(wave.total, steps)
    moments = [number + 0.5 for number in range(1000)]
    totals = [total(moment) for moment in moments]
    assert totals == sorted(totals)
    assert total(0.5) == totals[0]
    assert total(700.5) == totals[700] == SteppedTotal(wave.total, steps)(700.5)
