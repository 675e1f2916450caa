"""The odd one out: stated in one sentence after it has lasted, and only where all that it needs is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.node import Node, probe_node
from probes.facts.pci.functions import PciFacts
from probes.live.model.sample import (
    COLLISION,
    GpuSample,
    LiveJob,
    LiveProcess,
    NicUse,
    OddOne,
    PathJudgment,
    PathWord,
    PortSample,
    SlowestNic,
)
from probes.live.odd_one_out import OddOneOut
from probes.simulation.host import SimulatedHost
from tests.support.live_samples import a_gpu, a_job, a_port, a_process, a_sample

ABSENT = Unknown(Reason.NOT_THERE)
STAGED = PathJudgment(PathWord.STAGED, is_likely=True)
RAILS = (0, 1, 2, 3, 5, 6, 7, 8)  # the NIC of each GPU; mlx5_4 and mlx5_9 are for storage


@cache
def hgx() -> Node:
    return probe_node(SimulatedHost("hgx-h100"), seconds=60.0)


@cache
def gpus() -> tuple[GpuSample, ...]:
    node = hgx()
    assert not isinstance(node.gpus, Unknown)
    return tuple(replace(a_gpu(gpu.index), bdf=gpu.bdf) for gpu in node.gpus.gpus)


def rank(number: int, **parts: Any) -> LiveProcess:
    near = "0-55,112-167" if number < 4 else "56-111,168-223"
    nic = NicUse(f"mlx5_{RAILS[number]}", 32, 32, 100, 1 << 32)
    return a_process(number, **{"cpus": near, "gpus": (gpus()[number].bdf,), "nics": (nic,), **parts})


def job(count: int = 8) -> LiveJob:
    return replace(a_job(count), nics=tuple(f"mlx5_{number}" for number in RAILS[:count]))


def port(number: int, rate: Maybe[float] = 370.0, **parts: Any) -> PortSample:
    return a_port(RAILS[number], rate, **parts)


def ranks(count: int = 8, odd: int | None = None, **parts: Any) -> tuple[LiveProcess, ...]:
    return tuple(rank(number, **(parts if number == odd else {})) for number in range(count))


class Watching:
    """A job that is watched, one sample a second."""

    def __init__(self, node: Node | None = None) -> None:
        self.node = hgx() if node is None else node
        self.odd = OddOneOut()
        self.now = 0.0
        self.slowest: SlowestNic | None = None  # of the first job

    def see(
        self,
        seconds: int,
        rates: Sequence[Maybe[float]] | Callable[[int], Sequence[Maybe[float]]] = (370.0,) * 8,
        processes: Maybe[tuple[LiveProcess, ...]] | None = None,
        jobs: tuple[LiveJob, ...] | None = None,
        ports: tuple[PortSample, ...] | None = None,
        gpu_samples: tuple[GpuSample, ...] | None = None,
    ) -> tuple[OddOne, ...]:
        """Return what is odd at the end."""
        stated: tuple[LiveJob, ...] = ()
        for second in range(seconds):
            self.now += 1.0
            each = rates(second) if callable(rates) else rates
            sample = a_sample(
                self.now,
                jobs=(job(len(each)),) if jobs is None else jobs,
                processes=ranks(len(each)) if processes is None else processes,
                ports=tuple(port(n, rate) for n, rate in enumerate(each)) if ports is None else ports,
                gpus=gpus() if gpu_samples is None else gpu_samples,
            )
            stated = self.odd.update(sample, self.node)
        self.slowest = stated[0].slowest_nic if stated else None
        return tuple(odd for job in stated for odd in job.odd)


def sentences(odd: tuple[OddOne, ...]) -> list[str]:
    return [outlier.sentence for outlier in odd]


SLOW = (370.0, 372.0, 368.0, 371.0, 370.0, 148.0, 369.0, 375.0)


def test_a_uniform_job_has_no_odd_one() -> None:
    assert not Watching().see(60)


def test_a_rank_that_stops_later_is_odd_until_it_runs_again() -> None:
    watching = Watching()
    assert not watching.see(20)
    assert len(watching.see(5, processes=ranks(8, 5, state="T"))) == 1
    assert not watching.see(5)


def test_a_nic_below_half_the_median_for_ten_seconds() -> None:
    node = Watching()
    assert not node.see(9, SLOW)
    (odd,) = node.see(10, SLOW)
    assert odd.sentence == "mlx5_6 carries 148 Gb/s; the other 7 NICs of this job carry 370 Gb/s (median)"
    assert (odd.subject, odd.device) == ("mlx5_6", "mlx5_6")
    assert odd.evidence[0].source.endswith("mlx5_6/ports/1/counters/port_xmit_data")
    assert not node.see(10)


def test_a_nic_that_only_sends_slowly() -> None:
    ports = tuple(port(n, 100.0 if n == 2 else 370.0, received_gbps=370.0) for n in range(8))
    (odd,) = Watching().see(20, ports=ports)
    assert odd.sentence == "mlx5_2 sends 100 Gb/s; the other 7 NICs of this job send 370 Gb/s (median)"


def test_a_slow_nic_in_a_job_with_phases() -> None:
    """It goes on while the others wait for it."""

    def rates(second: int) -> Sequence[float]:
        return [
            (148.0 if second % 6 < 5 else 0.0) if n == 5 else (370.0 if second % 6 < 2 else 0.0)
            for n in range(8)
        ]

    assert [outlier.subject for outlier in Watching().see(60, rates)] == ["mlx5_6"]


@pytest.mark.parametrize(
    "rates",
    [
        lambda second: (370.0 if second % 19 < 16 else 55.0,) * 8,
        lambda second: (370.0 if second % 20 < 3 else 0.0,) * 8,
        # NICs whose bursts begin and end in different samples
        lambda second: [370.0 if (second + n % 2) % 8 < 4 else 0.0 for n in range(8)],
        lambda second: (0.5,) * 7 + (0.0,),
        lambda second: (370.0,) * 7 + (200.0,),
        lambda second: (370.0,) * 7 + (100.0 if second % 5 else 370.0,),
    ],
)
def test_phases_and_small_differences_are_not_odd(rates: Callable[[int], Sequence[float]]) -> None:
    node = Watching()
    for _ in range(10):
        assert not node.see(12, rates)


def test_two_nics_have_no_odd_one() -> None:
    assert not Watching().see(30, (370.0, 100.0))


def test_a_nic_with_an_unknown_rate_makes_no_statement_possible() -> None:
    assert not Watching().see(30, (*SLOW[:7], ABSENT))


def test_a_nic_that_two_jobs_share_is_not_compared() -> None:
    shared = replace(job(), shared_nics=frozenset({"mlx5_6"}))
    assert Watching().see(30, SLOW, jobs=(job(),))
    assert not Watching().see(30, SLOW, jobs=(shared,))


def test_a_port_that_is_down_is_not_slow() -> None:
    ports = tuple(port(n, 0.0 if n == 5 else 370.0, state="DOWN" if n == 5 else "ACTIVE") for n in range(8))
    assert not Watching().see(30, ports=ports)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            {"path": STAGED},
            "likely copies through host memory (staged);"
            " the other 7 ranks of this job use GPUDirect RDMA (DMA-BUF)",
        ),
        ({"state": "T"}, "is stopped; the other 7 ranks of this job are waiting for it"),
        (
            {"cpus": "0-55"},
            "is limited to CPUs on a different NUMA node than its GPU;"
            " the other 7 ranks of this job run near theirs",
        ),
        ({"nics": ()}, "uses no NIC; the other 7 ranks of this job use 1 NIC each"),
        (
            {"nics": (NicUse("mlx5_0", 1, 1, 1, 1),)},
            "uses mlx5_0 on a different NUMA node than its GPU;"
            " the other 7 ranks of this job use a NIC below their GPU's PCIe switch",
        ),
    ],
)
def test_a_rank_that_differs(parts: dict[str, Any], said: str) -> None:
    node = Watching()
    odd = ranks(odd=5, **parts)
    assert not node.see(1)
    assert not node.see(2, processes=odd)
    (odd_rank,) = node.see(1, processes=odd)
    assert odd_rank.sentence == f"rank 5 (pid 4716) {said}"
    assert odd_rank.pid == 4716
    assert not node.see(4)


def test_what_differs_from_the_beginning_is_said_at_once() -> None:
    assert Watching().see(1, processes=ranks(odd=5, cpus="0-55"))


def test_a_job_that_starts_later_has_to_differ_for_a_while() -> None:
    node = Watching()
    assert not node.see(1, processes=(), jobs=())
    assert not node.see(2, processes=ranks(odd=5, cpus="0-55"))


@pytest.mark.parametrize(
    "parts", [{"path": PathJudgment(PathWord.UNKNOWN, why="needs root")}, {"state": ABSENT}, {"cpus": ABSENT}]
)
def test_an_unknown_rank_is_not_odd(parts: dict[str, Any]) -> None:
    assert not Watching().see(10, processes=ranks(odd=5, **parts))


def test_an_unknown_rank_makes_no_statement_on_others_possible() -> None:
    unknown = PathJudgment(PathWord.UNKNOWN, why="needs root")
    changed = (*ranks(odd=5, path=STAGED)[:7], rank(7, path=unknown))
    assert not Watching().see(10, processes=changed)


def test_half_of_the_ranks_are_not_odd() -> None:
    half = tuple(rank(n, path=STAGED) if n % 2 else rank(n) for n in range(8))
    assert not Watching().see(10, processes=half)


def test_unknown_processes_are_not_odd() -> None:
    assert not Watching().see(30, SLOW, processes=Unknown(Reason.NEEDS_ROOT))


def test_a_launcher_is_not_an_odd_rank() -> None:
    launcher = rank(0, pid=4000, gpus=(), nics=(), rank=ABSENT, path=PathJudgment(PathWord.NO_NIC))
    with_launcher = replace(job(), pids=(4000, *job().pids))
    assert not Watching().see(10, processes=(launcher, *ranks()), jobs=(with_launcher,))


def test_a_gpu_with_fewer_lanes_than_the_others() -> None:
    def with_link(**parts: Any) -> tuple[GpuSample, ...]:
        return tuple(
            replace(a_gpu(n, **(parts if n == 3 else {})), bdf=gpu.bdf) for n, gpu in enumerate(gpus())
        )

    assert sentences(Watching().see(5, gpu_samples=with_link(link_width=8))) == [
        "GPU 3 has a PCIe link of Gen5 x8; the other 7 GPUs of this job have Gen5 x16"
    ]
    assert not Watching().see(5, gpu_samples=with_link(link_generation=1, busy=0))
    assert not Watching().see(5, gpu_samples=with_link(link_width=ABSENT))


def test_a_nic_with_a_slower_pcie_link_than_the_others() -> None:
    node = hgx()
    assert isinstance(node.pci, PciFacts)
    assert not isinstance(node.rdma, Unknown)
    bdf = str(next(device.bdf for device in node.rdma.devices if device.name == "mlx5_5"))
    function = node.pci.functions[bdf]
    slower = replace(function, link=replace(function.link, speed_gtps=8.0))
    pci = replace(node.pci, functions={**node.pci.functions, bdf: slower})
    odd = Watching(replace(node, pci=pci)).see(5)
    assert sentences(odd) == [
        "mlx5_5 has a PCIe link of Gen3 x16; the other 7 NICs of this job have Gen5 x16"
    ]


def evenly(slow: float) -> tuple[float, ...]:
    return tuple(slow if number == 5 else 370.0 for number in range(8))


def test_the_slowest_nic_is_named_by_the_average_of_ten_seconds() -> None:
    watching = Watching()
    watching.see(30, lambda second: evenly(200.0 if second % 3 == 0 else 370.0))
    assert watching.slowest is None  # single samples are below three quarters
    watching.see(2, evenly(220.0))
    assert watching.slowest is None
    watching.see(10, evenly(220.0))
    assert watching.slowest is not None
    assert watching.slowest.device == "mlx5_6"


def test_the_slowest_nic_stays_until_it_is_clearly_faster() -> None:
    watching = Watching()
    watching.see(20, evenly(250.0))
    assert watching.slowest is not None
    for second in range(20):  # around the threshold: 75% are 277 Gb/s
        watching.see(1, evenly(290.0 if second % 2 else 270.0))
        assert watching.slowest is not None
        assert watching.slowest.device == "mlx5_6"
    watching.see(12, evenly(340.0))
    assert watching.slowest is None


def test_two_slow_nics_do_not_take_turns() -> None:
    watching = Watching()
    seen = set()
    for second in range(60):
        pair = (200.0, 205.0) if second // 15 % 2 else (205.0, 200.0)
        watching.see(1, (*pair, *(370.0,) * 6))
        seen.add(watching.slowest.device if watching.slowest is not None else "")
    assert seen == {"", "mlx5_1"}


def test_an_idle_job_has_no_slowest_nic() -> None:
    watching = Watching()
    watching.see(20, (0.0,) * 7 + (0.1,))
    assert watching.slowest is None


# A collision: on RoCE, congestion slows one NIC alone.

CNPS = {"rp_cnp_handled": 2500.0}


@cache
def oci() -> Node:
    return probe_node(SimulatedHost("oci-h100"), seconds=60.0)


def slow(node: Node, rate: float, counters: Mapping[str, float], others: Mapping[str, float]) -> list[OddOne]:
    """Return what is slow of eight NICs of which the last one carries `rate`."""
    ports = (*(port(n, counters=others) for n in range(7)), port(7, rate, counters=counters))
    return [odd for odd in Watching(node).see(20, ports=ports) if odd.aspect == "rate"]


@pytest.mark.parametrize("rate", [150.0, 222.0])  # 40 and 60 %
def test_a_nic_that_congestion_slows_alone_has_likely_a_collision(rate: float) -> None:
    few = {"rp_cnp_handled": 20.0, "out_of_sequence": 900.0}
    (odd,) = slow(oci(), rate, {**CNPS, "out_of_sequence": 900.0}, few)
    assert (odd.device, odd.causes) == ("mlx5_8", (COLLISION,))
    assert "congestion slows this NIC alone, without errors: likely an ECMP collision" in odd.sentence
    assert odd.evidence[1].value.startswith("2,500 congestion notifications a second")


@pytest.mark.parametrize(
    ("counters", "others"),
    [
        (CNPS, CNPS),  # several senders to one receiver
        (CNPS, {"rp_cnp_handled": 800.0}),
        ({"rp_cnp_handled": 90.0}, {}),
        ({**CNPS, "packet_seq_err": 0.5}, {}),
        ({**CNPS, "symbol_error": 2.0}, {}),
        ({}, {}),
    ],
)
def test_congestion_of_all_nics_and_errors_are_no_collision(
    counters: Mapping[str, float], others: Mapping[str, float]
) -> None:
    assert not slow(oci(), 222.0, counters, others)
    (odd,) = slow(oci(), 150.0, counters, others)
    assert not odd.causes


def test_infiniband_has_no_ecmp() -> None:
    assert not slow(hgx(), 222.0, CNPS, {})


def test_a_nic_at_two_thirds_and_one_that_is_as_fast_have_no_collision() -> None:
    assert not slow(oci(), 260.0, CNPS, {})
    assert not slow(oci(), 370.0, CNPS, {})
