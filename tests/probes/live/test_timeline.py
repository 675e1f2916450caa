"""The timeline: exact samples of any moment of the last hour, in bounded memory."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from random import Random

import pytest

from probes.base.evidence import Severity
from probes.live.model.sample import EventKind, LiveEvent, LiveSample
from probes.live.timeline import KEPT_SECONDS, MAX_BYTES, MAX_EVENTS, Timeline
from tests.support.live_samples import BEGAN, a_port, a_sample


def event(at: float) -> LiveEvent:
    return LiveEvent(BEGAN + at, EventKind.PORT_STATE, Severity.WARNING, "mlx5_3", "mlx5_3 went down")


def filled(count: int, step: float = 1.0) -> tuple[Timeline, list[LiveSample]]:
    timeline = Timeline()
    samples = [replace(a_sample(number * step), ports=(a_port(0, float(number)),)) for number in range(count)]
    for sample in samples:
        timeline.add(sample)
    return timeline, samples


def test_an_empty_timeline_has_no_samples() -> None:
    timeline = Timeline()
    assert (timeline.times, timeline.events, timeline.at(BEGAN)) == ((), (), None)
    assert timeline.began_at == 0.0


@pytest.mark.slow
def test_each_moment_is_the_same_as_it_was() -> None:
    timeline, samples = filled(100)
    assert timeline.times == tuple(sample.taken_at for sample in samples)
    for number in (99, 0, 50, 51, 15, 16, 17, 98):
        assert timeline.at(BEGAN + number) == samples[number]
        assert timeline.at(BEGAN + number + 0.5) == samples[number]
    assert timeline.at(BEGAN - 1) is None
    assert timeline.at(BEGAN + 10_000) == samples[99]


@pytest.mark.slow
def test_it_keeps_one_hour() -> None:
    timeline, _ = filled(500, step=10.0)
    assert KEPT_SECONDS <= timeline.times[-1] - timeline.times[0] <= KEPT_SECONDS + 200
    assert timeline.began_at == timeline.times[0]


def test_events_are_kept_for_an_hour_and_bounded_in_number() -> None:
    timeline = Timeline()
    timeline.add(a_sample(0.0, events=(event(0.0), event(0.0))))
    timeline.add(a_sample(1.0, events=(event(1.0),)))
    assert [event.at - BEGAN for event in timeline.events] == [0.0, 0.0, 1.0]
    timeline.add(a_sample(KEPT_SECONDS + 1.0))
    assert [event.at - BEGAN for event in timeline.events] == [1.0]
    timeline.add(a_sample(KEPT_SECONDS + 2.0, events=(event(2.0),) * (MAX_EVENTS + 5)))
    assert len(timeline.events) == MAX_EVENTS


def test_samples_that_come_faster_than_one_a_second_are_skipped_but_not_their_events() -> None:
    timeline = Timeline()
    for number in range(40):
        timeline.add(a_sample(number / 4, events=(event(number / 4),)))
    assert len(timeline.times) < 20
    assert len(timeline.events) == 40


def test_a_rewound_recording_replaces_what_came_after() -> None:
    timeline, samples = filled(60)
    again = replace(samples[30], ports=(a_port(0, 1.0),))
    timeline.add(again)
    assert timeline.times == tuple(sample.taken_at for sample in samples[:31])
    assert timeline.at(BEGAN + 100) == again
    timeline.add(a_sample(-5.0))
    assert timeline.times == (BEGAN - 5.0,)


def test_a_clock_that_is_set_back_loses_no_sample() -> None:
    timeline = Timeline()
    timeline.add(a_sample(0.0))
    timeline.add(replace(a_sample(1.0), taken_at=BEGAN - 3600.0))
    assert timeline.times == (BEGAN, BEGAN - 3600.0)
    assert timeline.at(BEGAN) == replace(a_sample(1.0), taken_at=BEGAN - 3600.0)


@pytest.mark.slow
def test_big_samples_are_kept_further_apart_so_that_an_hour_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probes.live.timeline.MAX_BYTES", 120_000)
    timeline, random = Timeline(), Random(1)
    for number in range(5000):
        ports = tuple(a_port(name, random.uniform(0, 400)) for name in range(4))
        events = (event(float(number)),) if number % 60 == 0 else ()
        timeline.add(a_sample(float(number), ports=ports, events=events))
    assert timeline.size_bytes <= 120_000
    times = timeline.times
    assert 0.9 * KEPT_SECONDS <= times[-1] - times[0] <= KEPT_SECONDS + 200
    assert {event.at for event in timeline.events[1:]} <= set(times)


@pytest.mark.slow
def test_six_hours_take_no_more_memory_than_one() -> None:
    """At one sample a second."""
    timeline = Timeline()
    parts = [a_sample(ports=tuple(a_port(n, 370.0 + n / (k + 1)) for n in range(10))) for k in range(50)]
    tracemalloc.start()
    peak_of_an_hour = 0
    for number in range(21_600):
        part = parts[number % 50]
        events = (event(float(number)),) if number % 20 == 0 else ()
        timeline.add(replace(part, at=float(number), taken_at=BEGAN + number, events=events))
        if number == 4000:
            peak_of_an_hour = tracemalloc.get_traced_memory()[1]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert timeline.size_bytes < MAX_BYTES
    assert peak < 40_000_000
    assert peak < peak_of_an_hour * 1.2
