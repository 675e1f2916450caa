"""The spread of a job's traffic over its NICs: stated after minutes, and only where the work is equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from probes.facts.jobs.nccl_conf import NcclConf
from probes.facts.node import Node, probe_node
from probes.live.model.sample import LiveJob, LiveProcess, NicUse, OddOne, PortSample, Role
from probes.live.model.transfer import Serving
from probes.live.spread import Spread, planes_of
from probes.simulation.host import SimulatedHost
from tests.support.live_samples import a_job, a_port, a_process, a_sample

EVEN = (300.0,) * 8
ONE_MORE = (200.0, 200.0, 200.0, 300.0, 200.0, 200.0, 200.0, 200.0)
HALF = (300.0,) * 4 + (150.0,) * 4


@cache
def node(name: str) -> Node:
    return probe_node(SimulatedHost(name), seconds=60.0)


class Watching:
    """A job that is watched, one sample a second."""

    def __init__(self, name: str = "hgx-h100") -> None:
        self.node, self.spread, self.now = node(name), Spread(), 0.0

    def see(self, seconds: int, rates: tuple[float, ...] = EVEN, **parts: Any) -> tuple[OddOne, ...]:
        """Return what is odd at the end; `parts`: of the sample."""
        jobs: tuple[LiveJob, ...] = ()
        for _ in range(seconds):
            self.now += 1.0
            ports = tuple(a_port(number, rate) for number, rate in enumerate(rates))
            sample = a_sample(self.now, **{"ranks": len(rates), "ports": ports, **parts})
            jobs = self.spread.update(sample, self.node)
        return tuple(odd for job in jobs for odd in job.odd)


@pytest.mark.parametrize(("rates", "times"), [(ONE_MORE, "1.4"), (HALF, "1.3")])
def test_a_nic_that_carries_more_for_five_minutes(rates: tuple[float, ...], times: str) -> None:
    watching = Watching()
    assert not watching.see(299, rates)
    (odd,) = watching.see(5, rates)
    assert odd.aspect == "volume"
    assert f"carries {times} times the average of the 8 NICs of this job" in odd.sentence
    assert odd.sentence.endswith("which have 32 queue pairs each")
    assert odd.evidence[0].source.endswith(f"{odd.device}/ports/1/counters/port_xmit_data")
    assert not watching.see(300)


def ranks(change: Callable[[LiveProcess], LiveProcess], number: int = 3) -> tuple[LiveProcess, ...]:
    """Return eight ranks, one of them changed."""
    every = [a_process(rank) for rank in range(8)]
    return (*every[:number], change(every[number]), *every[number + 1 :])


def one_way(number: int, rate: float) -> PortSample:
    return a_port(number, rate, received_gbps=600.0 if number == 6 else 200.0)


@pytest.mark.parametrize(
    "parts",
    [
        # A pipeline stage has other connections than the next one.
        {"processes": ranks(lambda rank: replace(rank, nics=(NicUse("mlx5_3", 48, 48, 9, 1 << 30),)))},
        # Two ranks share a NIC, as on purpose with fewer NICs than GPUs.
        {"processes": ranks(lambda rank: replace(rank, nics=(*rank.nics, *a_process(3).nics)), 2)},
        # Experts: one rank sends more, another receives more.
        {"ports": tuple(one_way(number, rate) for number, rate in enumerate(ONE_MORE))},
        # Queue pairs that the kernel does not list, perhaps of GIN.
        {"processes": ranks(lambda rank: replace(rank, threads=("NCCL GIN",)))},
        {"processes": ranks(lambda rank: replace(rank, serving=Serving("NIXL over UCX")))},
        # Storage in the kernel, or another job, on the busiest NIC.
        {"kernel_clients": {"mlx5_3": ("ko2iblnd",)}},
        {"jobs": (replace(a_job(), shared_nics=frozenset({"mlx5_3"})),)},
        # Programs whose parts differ by design.
        *({"jobs": (replace(a_job(), role=role),)} for role in (Role.STORAGE, Role.UCX, Role.NVSHMEM)),
        # The job leaves the busiest NIC out on purpose: it is the head node's own.
        {"jobs": (replace(a_job(), nics=tuple(f"mlx5_{rank}" for rank in range(8) if rank != 3)),)},
        # It is slow already, for a reason of its own.
        {"jobs": (replace(a_job(), odd=(OddOne("mlx5_0", "", aspect="rate"),)),)},
        {"ports": ()},
    ],
)
def test_what_is_uneven_by_design_is_not_stated(parts: Mapping[str, Any]) -> None:
    assert {odd.aspect for odd in Watching().see(310, ONE_MORE, **parts)} <= {"rate"}


@pytest.mark.parametrize("rates", [EVEN, (300.0,) * 6 + (270.0, 340.0), (0.1,) * 7 + (0.9,)])
def test_small_differences_and_little_traffic_are_even(rates: tuple[float, ...]) -> None:
    assert not Watching().see(310, rates)


def test_a_job_that_restarts_and_a_pause_of_gdrtop_begin_again() -> None:
    watching = Watching()
    watching.see(280, ONE_MORE)
    watching.now += 10.0
    assert not watching.see(60, ONE_MORE)
    other = replace(a_job(), pids=(4800,))
    assert not watching.see(280, ONE_MORE, jobs=(other,))


# Planes

PLANES = "hgx-b300+plane-unused"
FIRST, SECOND = (4, 5, 6), (12, 13, 14)


def with_settings(**variables: str) -> tuple[LiveProcess, ...]:
    """Return three ranks on the first planes, which set these variables."""
    every = [a_process(number, nics=(NicUse(f"mlx5_{number}", 32, 32, 9, 1 << 30),)) for number in FIRST]
    return tuple(replace(rank, process=replace(rank.process, environment=dict(variables))) for rank in every)


def planes(second: float = 0.0, **parts: Any) -> dict[str, Any]:
    pids = tuple(rank.pid for rank in with_settings())
    job = replace(a_job(), pids=pids, nics=tuple(f"mlx5_{number}" for number in FIRST))
    ports = [*(a_port(number, 300.0) for number in FIRST), *(a_port(number, second) for number in SECOND)]
    return {"jobs": (job,), "processes": with_settings(), "ports": tuple(ports), **parts}


def test_a_plane_without_traffic_for_a_minute() -> None:
    watching = Watching(PLANES)
    assert not watching.see(60, **planes())
    found = watching.see(5, **planes())
    assert [odd.device for odd in found] == ["mlx5_12", "mlx5_13", "mlx5_14"]
    assert found[0].sentence == (
        "mlx5_12 carries nothing, while mlx5_4, the other plane of its NIC, carries 300 Gb/s"
    )
    assert not watching.see(61, **planes(250.0))


def conf(text: str) -> tuple[LiveProcess, ...]:
    """Return the ranks, whose container has NCCL_IB_HCA in its nccl.conf."""
    own = NcclConf({"NCCL_IB_HCA": text}, ())
    return tuple(replace(rank, process=replace(rank.process, nccl_conf=own)) for rank in with_settings())


@pytest.mark.parametrize(
    "parts",
    [
        # On purpose.
        {"processes": with_settings(NCCL_IB_HCA="=mlx5_4,mlx5_5,mlx5_6")},
        {"processes": with_settings(UCX_NET_DEVICES="mlx5_4:1,mlx5_5:1,mlx5_6:1")},
        {"processes": with_settings(UCX_NET_DEVICES="mlx5_120:1,mlx5_130:1,mlx5_140:1")},
        {"processes": with_settings(NVSHMEM_HCA_LIST="^mlx5_12,mlx5_13,mlx5_14")},
        {"processes": with_settings(NVSHMEM_HCA_LIST="mlx5_4,mlx5_5,mlx5_6")},
        {"processes": conf("=mlx5_4,mlx5_5,mlx5_6")},
        # Unknown: the environment belongs to another user.
        {"processes": tuple(a_process(number) for number in FIRST)},
        # Another job has the second planes.
        {
            "jobs": (
                *planes()["jobs"],
                replace(a_job(), id="other", pids=(9,), nics=("mlx5_12", "mlx5_13", "mlx5_14")),
            )
        },
        {"kernel_clients": {f"mlx5_{number}": ("nvme_rdma",) for number in SECOND}},
        # The second ports have no link, one of them is used, or the job moves nothing.
        {
            "ports": tuple(
                a_port(number, 300.0, state="ACTIVE" if number < 9 else "DOWN") for number in (4, 12)
            )
        },
        {"ports": (*planes()["ports"][:5], a_port(14, 250.0))},
        {"ports": tuple(a_port(number, 0.0) for number in (*FIRST, *SECOND))},
    ],
)
def test_a_plane_that_is_not_meant_to_be_used(parts: Mapping[str, Any]) -> None:
    assert not Watching(PLANES).see(65, **planes(**parts))


@pytest.mark.parametrize("name", ["hgx-h100", "oci-h100", "hgx-b300", "gb300", "dgx-spark"])
def test_two_ports_of_other_nics_are_no_planes(name: str) -> None:
    assert not planes_of(node(name))


def test_settings_that_allow_both_planes() -> None:
    everything = with_settings(UCX_NET_DEVICES="all", NCCL_IB_HCA="mlx5", NVSHMEM_HCA_LIST="^mlx5_4")
    assert len(Watching(PLANES).see(65, **planes(processes=everything))) == 3
