"""The live sample of a simulated node; a part that fails spoils only itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import pytest

from probes.base.unknown import Maybe, Unknown
from probes.facts.node import Node, probe_node
from probes.host.protocol import KernelMessage
from probes.live import live_sampler
from probes.live.live_sampler import LiveSampler
from probes.live.model.sample import LiveSample
from probes.simulation.host import SimulatedHost
from probes.snapshot.rates import read


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class WithoutKernelLog(SimulatedHost):
    def kernel_messages(self) -> Maybe[tuple[KernelMessage, ...]]:
        raise ValueError("a message that nothing can parse")


class WithoutEthtool(SimulatedHost):
    def ethtool_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[dict[str, int]]]:
        raise ValueError("an answer that nothing can parse")


@cache
def node_of(name: str) -> Node:
    return probe_node(SimulatedHost(name), seconds=60.0)


def samples(kind: type[SimulatedHost], seconds: int = 5, name: str = "hgx-h100") -> list[LiveSample]:
    clock = Clock()
    host, sampler, found = kind(name, clock=clock), LiveSampler(), []
    for _ in range(seconds):
        clock.now += 1.0
        found.append(sampler.sample(host, node_of(name), read(host, node_of(name))))
        assert sampler.latest is found[-1]
    return found


def test_a_sample_has_the_ports_gpus_and_jobs_of_the_node() -> None:
    last = samples(SimulatedHost)[-1]
    assert len(last.ports) == 10
    assert len(last.gpus) == 8
    (job,) = last.jobs
    assert len(job.pids) == len(job.nics) == 8
    assert not job.odd
    assert all(not isinstance(port.sent_gbps, Unknown) for port in last.ports)
    assert last.modules["nvidia"] == "live"
    assert not last.events


def test_a_kernel_log_that_fails_costs_only_its_messages() -> None:
    last = samples(WithoutKernelLog)[-1]
    assert "An error in gdrtop hides kernel messages (ValueError)" in last.limits
    assert len(last.ports) == 10
    assert last.jobs


def test_ethtool_that_fails_costs_only_its_counters() -> None:
    for port in samples(WithoutEthtool)[-1].ports:
        assert isinstance(port.pause_percent, Unknown)
        assert not isinstance(port.sent_gbps, Unknown)


def test_jobs_that_cannot_be_grouped_cost_only_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("job")

    monkeypatch.setattr(live_sampler, "jobs_of", fail)
    last = samples(SimulatedHost)[-1]
    assert last.jobs == ()
    assert "An error in gdrtop hides the jobs (KeyError)" in last.limits
    assert isinstance(last.processes, tuple)
    assert len(last.ports) == 10


@pytest.mark.parametrize("name", ["dgx-a100", "pcie-l40s", "gb200", "cloud-vm"])
def test_a_healthy_node_has_no_events_and_no_odd_one(name: str) -> None:
    for sample in samples(SimulatedHost, 40, name):
        assert not sample.events
        assert not any(job.odd for job in sample.jobs)


def test_root_on_the_host_has_the_rates_of_a_pod_in_its_own_rdma_namespace() -> None:
    sample = samples(SimulatedHost, name="pcie-l40s+rdma-devices-in-pods-root")[-1]
    assert {port.device: port.state for port in sample.ports} == {"mlx5_0": "ACTIVE", "mlx5_1": "ACTIVE"}
    job = sample.jobs[0]
    assert "pod 1b2c3d4e" in job.name
    assert not isinstance(job.sent_gbps, Unknown)
    assert job.sent_gbps > 10
    assert all(isinstance(port.pause_percent, Unknown) for port in sample.ports)  # its netdev is elsewhere


def test_without_root_a_pods_ports_are_not_there_and_in_a_pod_rates_are_unknown_not_zero() -> None:
    assert samples(SimulatedHost, name="pcie-l40s+rdma-devices-in-pods")[-1].ports == ()
    for port in samples(SimulatedHost, name="pcie-l40s+in-pod")[-1].ports:
        assert isinstance(port.sent_gbps, Unknown)
        assert "network namespace" in port.sent_gbps.detail
