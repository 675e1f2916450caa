"""Rates that fall: the phases of training are no event, a rate limit and a slow NIC are."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Maybe, Reason, Unknown
from probes.live.model.sample import EventKind, LiveEvent, LiveSample, Role
from probes.snapshot.condition import TRAFFIC_FELL
from tests.support.event_runs import Following, texts
from tests.support.live_samples import a_job, a_port, a_process, a_sample


def carrying(*rates: Maybe[float], role: Role = Role.NCCL, ranks: int = 8) -> LiveSample:
    """Return a sample whose NICs carry these rates, the last one for all further NICs."""
    every = (*rates, *([rates[-1]] * (8 - len(rates))))
    sample = a_sample(ranks=ranks, ports=tuple(a_port(n, rate) for n, rate in enumerate(every)))
    return replace(sample, jobs=tuple(replace(job, role=role) for job in sample.jobs))


def train(node: Following, *phases: tuple[float, int], seconds: int) -> list[LiveEvent]:
    """Run a job whose NICs all carry a rate for some seconds, in turn."""
    events: list[LiveEvent] = []
    end = node.now + seconds
    for rate, length in cycle(phases):
        if node.now >= end:
            return events
        events += node.see(carrying(rate), length)
    return events


def fallen(node: Following) -> dict[str, int]:
    """Return what the traffic that fell is reported of, with the number of NICs."""
    conditions = node.sample.watched.conditions
    return {
        condition.subject: len(condition.devices)
        for condition in conditions
        if condition.check == TRAFFIC_FELL
    }


def test_on_a_slow_line_less_than_a_gigabit_counts() -> None:
    node = Following()

    def carries(rate: float) -> LiveSample:
        sample = carrying(rate, role=Role.PERFTEST, ranks=1)
        return replace(sample, ports=tuple(replace(port, line_rate_gbps=2.5) for port in sample.ports))

    assert not node.see(carries(0.06), 20)
    (event,) = node.see(carries(0.008), 4)
    assert event.kind is EventKind.RATE_FELL
    assert event.text == "mlx5_0 carries 8 Mb/s, down from 60 Mb/s the minute before"
    (event,) = node.see(carries(0.06), 4)
    assert event.text == "mlx5_0 carries 60 Mb/s again"


def test_of_software_rdma_a_few_megabits_count() -> None:
    node = Following()

    def carries(rate: float, interface: str) -> LiveSample:
        sample = carrying(rate, role=Role.PERFTEST, ranks=1)
        return replace(sample, ports=tuple(replace(port, rates_from=interface) for port in sample.ports))

    assert not node.see(carries(0.02, "ens0np0"), 20)
    (event,) = node.see(carries(0.002, "ens0np0"), 4)
    assert event.text == "mlx5_0 carries 2 Mb/s, down from 20 Mb/s the minute before"
    other = Following()
    assert not other.see(carries(0.02, ""), 20)
    assert not other.see(carries(0.002, ""), 4)


@pytest.mark.parametrize(
    "phases",
    [
        ((370.0, 16), (55.0, 3)),
        ((370.0, 3), (0.0, 7)),
        ((370.0, 1), (0.0, 12)),
        ((370.0, 16), (55.0, 3), (370.0, 16), (55.0, 3), (370.0, 16), (18.0, 8)),
        ((370.0, 60), (0.0, 15)),
    ],
)
def test_phases_of_training_are_no_event(phases: tuple[tuple[float, int], ...]) -> None:
    assert not train(Following(), *phases, seconds=320)


def test_a_job_that_stops_sending_is_one_event_and_one_when_it_goes_on() -> None:
    node = Following()
    train(node, (370.0, 16), (55.0, 3), seconds=120)
    (fell,) = node.see(carrying(3.0), 60)
    assert (fell.kind, fell.severity) == (EventKind.RATE_FELL, Severity.WARNING)
    assert fell.text == "8 NICs of train.py (alice) carry 24 Gb/s, down from 2,960 Gb/s the minute before"
    events = train(node, (370.0, 16), (55.0, 3), seconds=120)
    assert {event.kind for event in events} == {EventKind.RATE_RECOVERED}
    assert len(events) == 1


def test_a_job_stays_stalled_until_its_last_nic_recovers() -> None:
    node = Following()
    node.see(carrying(370.0), 60)
    node.see(carrying(0.0), 40)
    assert fallen(node) == {"job": 8}
    assert not node.see(carrying(370.0, 0.0), 60)
    assert fallen(node) == {"job": 7}
    assert texts(node.see(carrying(370.0), 5)) == ["train.py (alice) sends again"]
    assert not fallen(node)


def test_a_job_stays_stalled_when_its_first_rank_ends() -> None:
    node = Following()
    node.see(carrying(370.0), 60)
    node.see(carrying(0.0), 40)
    job, ranks = a_job(), tuple(a_process(rank) for rank in range(1, 8))
    rest = replace(carrying(0.0), processes=ranks, jobs=(replace(job, pids=job.pids[1:], nics=job.nics[1:]),))
    node.see(rest, 60)
    assert fallen(node) == {"job": 7}
    node.see(carrying(0.0, ranks=0), 5)
    assert not fallen(node)


def test_a_job_that_stops_after_one_of_its_nics_was_slow_is_reported_too() -> None:
    node = Following()
    node.see(carrying(370.0), 60)
    node.see(carrying(120.0, 370.0), 20)
    assert fallen(node) == {"mlx5_0": 1}
    node.see(carrying(0.0), 40)
    assert fallen(node) == {"mlx5_0": 1, "job": 7}
    assert texts(node.see(carrying(120.0, 370.0), 5)) == ["train.py (alice) sends again"]
    assert fallen(node) == {"mlx5_0": 1}


@pytest.mark.parametrize("seconds", [10, 40])
def test_a_stalled_rate_is_not_usual_after_a_sample_without_processes(seconds: int) -> None:
    node = Following()
    node.see(carrying(370.0), 60)
    node.see(carrying(0.0), seconds)
    node.see(replace(carrying(0.0), processes=Unknown(Reason.TIMED_OUT), jobs=()))
    node.see(carrying(0.0), 30)
    assert fallen(node) == {"job": 8}
    assert texts(node.see(carrying(370.0), 5)) == ["train.py (alice) sends again"]


def test_a_stalled_rate_is_not_usual_after_queue_pairs_could_not_be_listed() -> None:
    node = Following()
    node.see(carrying(370.0), 60)
    node.see(carrying(0.0), 40)
    ranks = tuple(a_process(rank, nics=(), is_listed=False) for rank in range(8))
    node.see(replace(carrying(0.0), processes=ranks, jobs=(replace(a_job(), nics=()),)))
    node.see(carrying(0.0), 5)
    assert fallen(node) == {"job": 8}


def test_one_slow_nic_while_the_others_go_on() -> None:
    node = Following()
    train(node, (370.0, 16), (55.0, 3), seconds=120)
    node.see(carrying(370.0), 5)
    (fell,) = node.see(carrying(120.0, 370.0), 15)
    assert fell.text == "mlx5_0 carries 120 Gb/s, down from 370 Gb/s the minute before"
    assert fell.subject == "mlx5_0"
    assert texts(node.see(carrying(370.0), 5)) == ["mlx5_0 carries 370 Gb/s again"]


def test_a_rate_limit_on_a_benchmark_shows_within_three_samples() -> None:
    node = Following()
    node.see(carrying(90.0, role=Role.PERFTEST, ranks=1), 8)
    (fell,) = node.see(carrying(4.0, role=Role.PERFTEST, ranks=1), 3)
    assert fell.text == "mlx5_0 carries 4.0 Gb/s, down from 90 Gb/s the minute before"


def test_traffic_of_a_storage_client_may_come_in_bursts() -> None:
    node = Following()
    for _ in range(5):
        assert not node.see(carrying(150.0, role=Role.STORAGE, ranks=2), 60)
        assert not node.see(carrying(2.0, role=Role.STORAGE, ranks=2), 60)


def test_a_job_that_ends_has_no_rate_to_fall() -> None:
    node = Following()
    node.see(carrying(370.0), 100)
    events = node.see(carrying(0.0, ranks=0), 60)
    assert {event.kind for event in events} == {EventKind.PROCESS_ENDED}


def test_little_traffic_and_unknown_rates_are_no_event() -> None:
    node = Following()
    node.see(carrying(0.9), 100)
    assert not node.see(carrying(0.0), 60)
    node.see(carrying(370.0), 100)
    assert not node.see(carrying(Unknown(Reason.NOT_THERE)), 60)
    assert not node.see(carrying(370.0), 30)


def test_unknown_processes_give_no_event() -> None:
    node = Following()
    unknown = Unknown(Reason.NEEDS_ROOT)
    node.see(replace(carrying(370.0), processes=unknown), 100)
    assert not node.see(replace(carrying(3.0), processes=unknown), 60)


def test_a_port_that_goes_down_is_not_also_a_rate_that_fell() -> None:
    node = Following()
    node.see(carrying(370.0), 100)
    ports = (a_port(0, 0.0, state="DOWN"), *(a_port(n) for n in range(1, 8)))
    assert texts(node.see(a_sample(ports=ports), 60)) == ["mlx5_0 went down"]


def test_a_new_job_on_the_same_nics_starts_with_a_new_history() -> None:
    node = Following()
    node.see(carrying(370.0), 100)
    others = tuple(replace(a_process(rank), pid=6000 + rank) for rank in range(8))
    slow = carrying(20.0)
    events = node.see(replace(slow, processes=others), 100)
    assert EventKind.RATE_FELL not in {event.kind for event in events}


def test_nics_that_fall_one_after_the_other_are_one_event() -> None:
    node = Following()
    node.see(carrying(370.0), 20)
    node.see(carrying(0.0, 370.0), 1)
    node.see(carrying(0.0, 0.0, 370.0), 1)
    assert texts(node.see(carrying(0.0), 60)) == [
        "8 NICs of train.py (alice) carry 0.0 Gb/s, down from 2,960 Gb/s the minute before"
    ]
