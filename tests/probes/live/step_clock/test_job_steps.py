"""Each job has a step clock of its own, on a NIC that no other job uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from probes.base.unknown import Maybe, Unknown
from probes.facts.node import Node, probe_node
from probes.facts.rdma.devices import RdmaFacts
from probes.live.model.sample import JobStep, LiveJob, LiveSample, PortSample
from probes.live.step_clock.job_steps import JobSteps
from probes.recording.replay_host import ReplayHost
from probes.simulation.host import SimulatedHost
from tests.support.live_samples import a_job, a_port, a_sample
from tests.support.pilot import SteppedClock
from tests.support.recordings import archive_of, moments_of, read
from tests.support.simulated_traffic import readings, steps

PERIODS = {"mlx5_1": 1.4, "mlx5_2": 2.2}


class CountingHost(SimulatedHost):
    """A node whose counters show jobs with these periods."""

    def __init__(self) -> None:
        super().__init__("hgx-h100", clock=SteppedClock())
        self.second = 0
        self.asked: set[str] = set()
        self.read = {
            name: readings(steps(Random(name), period), 200, Random(name)) for name, period in PERIODS.items()
        }

    def counter_readings(
        self, paths: Sequence[str], interval: float = 0.1
    ) -> Maybe[tuple[tuple[float, int], ...]]:
        device = paths[0].split("/")[4]
        self.asked.add(device)
        before = self.second - 1
        return tuple((at, int(count)) for at, count in self.read[device] if before < at <= self.second)


@pytest.fixture(scope="module")
def node() -> Node:
    return probe_node(SimulatedHost("hgx-h100"), seconds=60.0)


def job(name: str, pid: int, *nics: str, shared: str = "") -> LiveJob:
    return replace(a_job(), id=name, pids=(pid,), nics=nics, shared_nics=frozenset({shared}))


def sample(at: float, jobs: tuple[LiveJob, ...], *ports: PortSample) -> LiveSample:
    return a_sample(at, jobs=jobs, ports=ports)


def test_two_jobs_on_two_nics_have_their_own_steps(node: Node) -> None:
    host, clocks = CountingHost(), JobSteps()
    jobs = tuple(
        job(name, pid, "mlx5_0", own, shared="mlx5_0")
        for name, pid, own in (("first", 1, "mlx5_1"), ("second", 2, "mlx5_2"))
    )
    ports = (a_port(0, 390.0), a_port(1, 300.0), a_port(2, 300.0))
    for second in range(1, 190):
        host.second = second
        jobs = clocks.update(host, node, sample(float(second), jobs, *ports))
    assert host.asked == {"mlx5_1", "mlx5_2"}  # the busiest NIC carries the traffic of both
    found = [each.step.seconds for each in jobs if isinstance(each.step, JobStep)]
    assert found == pytest.approx([1.4, 2.2], rel=0.03)
    clocks.update(host, node, sample(189.2, (), *ports))  # a node that answers late
    (without,) = clocks.update(host, node, sample(189.4, (job("first", 1),), *ports))
    assert isinstance(without.step, JobStep)
    started = clocks.update(host, node, sample(190.0, (job("first", 9, "mlx5_1"),), *ports))
    assert "some minutes of traffic" in str(started[0].step)


def test_a_job_that_moves_nothing_or_shares_its_nics_is_not_read(node: Node) -> None:
    host, clocks = CountingHost(), JobSteps()
    idle = clocks.update(host, node, sample(1.0, (job("first", 1, "mlx5_1"),), a_port(1, 0.1)))
    both = tuple(job(name, pid, "mlx5_1", shared="mlx5_1") for name, pid in (("first", 1), ("second", 2)))
    shared = clocks.update(host, node, sample(2.0, both, a_port(1, 300.0)))
    assert all("no NIC of the job is busy" in str(each.step) for each in (*idle, *shared))
    assert all(isinstance(each.step, Unknown) for each in (*idle, *shared))
    assert not host.asked


def test_a_recording_has_one_reading_a_second_and_so_no_step(node: Node) -> None:
    clock = SteppedClock()
    moments = moments_of(SimulatedHost("hgx-h100", clock=clock), clock)
    host = ReplayHost(read(archive_of(moments)))
    (found,) = JobSteps().update(host, node, sample(1.0, (job("first", 1, "mlx5_1"),), a_port(1, 300.0)))
    assert "needs 10 readings a second, and a recording has one" in str(found.step)


def test_the_port_that_carries_the_data_is_watched_and_slow_nics_count(node: Node) -> None:
    """Port 1 may be down or idle, and 0.2 Gb/s is traffic on a 10 Gb/s NIC."""
    assert isinstance(node.rdma, RdmaFacts)
    (device,) = (device for device in node.rdma.devices if device.name == "mlx5_1")
    both = replace(device, ports=(device.ports[0], replace(device.ports[0], number=2)))
    with_two = replace(node, rdma=replace(node.rdma, devices=(both,)))
    host, clocks = CountingHost(), JobSteps()
    ports = (a_port(1, 0.0, line_rate_gbps=10.0), a_port(1, 0.2, port=2, line_rate_gbps=10.0))
    for second in range(1, 190):
        host.second = second
        now = sample(float(second), (job("first", 1, "mlx5_1"),), *ports)
        (found,) = clocks.update(host, with_two, now)
    assert isinstance(found.step, JobStep)
    assert all("mlx5_1/ports/2/counters/" in file for file in found.step.files)
