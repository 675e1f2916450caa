"""Samples of several nodes at once: one that hangs or fails does not delay the others."""

import threading
from collections.abc import Iterator

import pytest

from probes.base.unknown import Unknown
from probes.fleet.job_model import ClockOffset
from probes.fleet.rails import rails_of
from probes.fleet.sampler import ANSWER_SECONDS, FIRST_ANSWER_SECONDS, FleetSampler, measure_clock
from probes.simulation.host import SimulatedHost, job_nodes
from probes.snapshot.examination import examine
from tests.support.fleet_samples import HungHost


class FailingHost(SimulatedHost):
    def wall_clock(self) -> float:
        raise ConnectionResetError("the connection was closed")


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_node_that_hangs_is_late_and_the_others_go_on(released: threading.Event) -> None:
    now = [0.0]
    hosts = {"good": SimulatedHost("hgx-h100", clock=lambda: 5000.0), "hung": HungHost(released)}
    sampler = FleetSampler(hosts, lambda: now[0])

    def until(name: str) -> dict[str, str]:
        """Read until a node has answered, which on a busy machine takes longer; return who is late."""
        while True:
            seen, late = sampler.read(0.2)
            if name in seen:
                return late

    assert until("good") == {}
    now[0] = FIRST_ANSWER_SECONDS - 1
    assert until("good") == {}
    now[0] = FIRST_ANSWER_SECONDS
    assert until("good") == {"hung": "no answer for 60 s"}
    released.set()
    until("hung")
    now[0] += ANSWER_SECONDS - 1
    assert until("hung") == {}


def test_a_node_that_fails_says_why_and_is_asked_again() -> None:
    sampler = FleetSampler({"bad": FailingHost("hgx-h100")})
    for _ in range(2):
        seen, late = sampler.read(30.0)
        assert not seen
        assert "the connection was closed" in late["bad"]


def test_a_clock_is_compared_by_the_fastest_answer() -> None:
    host = SimulatedHost("hgx-h100", clock=lambda: 5000.0)  # its wall clock stands at 1,700,000,000
    times = iter([1e9, 1e9 + 4, 1e9 + 10, 1e9 + 10.2, 1e9 + 20, 1e9 + 22])
    found = measure_clock(host, lambda: next(times))
    assert isinstance(found, ClockOffset)
    assert found.uncertainty_seconds == pytest.approx(0.1)
    assert found.seconds == pytest.approx(7e8 - 10.1)
    back = iter([1e9, 1e9 - 5] * 3)
    assert isinstance(measure_clock(host, lambda: next(back)), Unknown)


def test_nodes_of_a_job_have_the_rails_that_their_bandwidth_tests_name() -> None:
    hosts = job_nodes("hgx-h100", 2, clock=lambda: 5000.0)
    seen, _ = FleetSampler(hosts).read(60.0)
    for name, host in hosts.items():
        examination = examine(host)
        assert seen[name].rails == rails_of(examination.node, examination.topology)
