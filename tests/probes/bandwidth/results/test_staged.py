"""What traffic costs without GPUDirect RDMA, as NCCL's two runs or the parts of the staged path show it."""

from dataclasses import replace

import pytest

from probes.bandwidth.model.planned_series import LeftOut, Pair
from probes.bandwidth.model.result import Ending, Result, is_as_requested
from probes.bandwidth.model.samples import HOST_MEMORY, STAGED, About, Fact, Sample
from probes.bandwidth.results.comparison import conclusions, staging_figures
from tests.support.sample_results import result

DIRECT_ROUTE, STAGED_ROUTE = "NET/IB/0/GDRDMA", "NET/IB/0"


def collective(gbps: float, us: float, cpu: float | None, route: str, memory: str = "") -> Result:
    title = "8 GPUs · all_reduce_perf over the NICs" + (", staged" if memory else "")
    large = Sample("all_reduce", "", gbps=gbps / 2, bus_gbps=gbps, time_us=9000.0, size_bytes=1 << 30)
    small = Sample("all_reduce", "", gbps=0.0, bus_gbps=0.0, time_us=us, size_bytes=8)
    return result(
        None,
        memory,
        title=title,
        tool="all_reduce_perf",
        pair=Pair(gpu_label="GPU0,GPU1"),
        size_bytes=None,
        over_network=True,
        figure=large,
        samples=(small, replace(small, time_us=us + 1), large),
        facts=(Fact(About.ROUTE, route, ""),),
        seconds=10.0,
        cpu_seconds=cpu,
    )


def direct(gbps: float = 371.0, us: float = 14.0, cpu: float | None = 1.0) -> Result:
    return collective(gbps, us, cpu, DIRECT_ROUTE)


def staged(gbps: float = 142.0, us: float = 38.0, cpu: float | None = 24.0) -> Result:
    return collective(gbps, us, cpu, STAGED_ROUTE, STAGED)


def test_bandwidth_latency_and_cpu_time_are_compared() -> None:
    assert conclusions([direct(), staged()]) == (
        "all_reduce_perf without GPUDirect RDMA: staged 142 of 371 Gb/s, 2.6× slower",
        "a message of 8 bytes takes 38 instead of 14 µs",
        "the same data takes 24 instead of 1 s of CPU time (2.4 instead of 0.1 cores)",
    )
    assert staging_figures([staged(), direct()]) == "staged 142 of 371 Gb/s, 2.6× slower"


def test_what_does_not_differ_is_not_called_a_loss() -> None:
    bandwidth, latency, _ = conclusions([direct(us=38.5), staged(gbps=365.0)])
    assert bandwidth.endswith("365 of 371 Gb/s, equally fast")
    assert latency.startswith("a message of 8 bytes takes 38 µs in both cases")


def test_a_direct_path_slower_than_the_copy_is_a_fault() -> None:
    told = conclusions([direct(gbps=60.0), staged()])
    assert "142 of 60 Gb/s, faster" in told[0]
    assert "GPUDirect RDMA is slower than copies through host memory" in told[1]
    assert "gdrtop check" in told[1]


@pytest.mark.parametrize("cpu", [(None, 24.0), (1.0, None)])
def test_an_unknown_cpu_time_is_not_compared(cpu: tuple[float | None, float | None]) -> None:
    told = " ".join(conclusions([direct(cpu=cpu[0]), staged(cpu=cpu[1])]))
    assert "2.6× slower" in told
    assert "CPU" not in told


def test_gdrdma_in_the_staged_run_means_that_it_was_not_staged() -> None:
    wrong = collective(371.0, 14.0, 1.0, DIRECT_ROUTE, STAGED)
    assert not is_as_requested(wrong)
    (told,) = conclusions([direct(), wrong])
    assert told.startswith("the staged path was not measured: ")
    assert "NCCL used NET/IB/0/GDRDMA although" in told
    assert staging_figures([direct(), wrong]) == ""


@pytest.mark.parametrize("routes", [(), (Fact(About.ROUTE, "NET/Socket/0", ""),)])
def test_without_a_route_over_rdma_nothing_is_proven(routes: tuple[Fact, ...]) -> None:
    (told,) = conclusions([direct(), replace(staged(), facts=routes)])
    assert told.startswith("the staged path was not measured: ")


def test_where_nccl_stages_by_itself_no_saving_is_claimed() -> None:
    both_staged = collective(140.0, 38.0, 24.0, STAGED_ROUTE)
    (told,) = conclusions([both_staged, staged()])
    assert told.startswith("the gain from GPUDirect RDMA was not measured, because NCCL by itself")
    assert staging_figures([both_staged, staged()]) == ""


def test_a_direct_run_that_was_partly_staged_says_so() -> None:
    routes = (Fact(About.ROUTE, DIRECT_ROUTE, ""), Fact(About.ROUTE, "NET/IB/4", ""))
    told = conclusions([replace(direct(gbps=150.0), facts=routes), staged()])
    assert told[0].endswith("142 of 150 Gb/s, 1.1× slower")
    assert told[1].startswith("NCCL itself staged on 1 of 2 routes")


def test_a_direct_path_that_fails_where_staging_works_is_the_fault() -> None:
    broken = replace(direct(), ending=Ending.FAILED, failure="error 4", figure=None, samples=())
    (told,) = conclusions([broken, staged()])
    assert "with GPUDirect RDMA all_reduce_perf failed (error 4); staged, it works (142 Gb/s)" in told
    assert "the fault is on the path between NIC and GPU" in told
    also = replace(staged(), ending=Ending.FAILED, failure="no NIC", figure=None, samples=())
    (told,) = conclusions([broken, also])
    assert "as with GPUDirect RDMA: the cause is not the path to the GPU" in told


def test_a_staged_run_alone_is_compared_with_nothing() -> None:
    (told,) = conclusions([staged()])
    assert told == "NCCL reaches 142 Gb/s without GPUDirect RDMA; --memory compare measures both"


def test_parts_give_a_limit_and_never_a_figure_of_the_whole() -> None:
    copies = result(210.0, "", tool="nvbandwidth", title="GPU0 · nvbandwidth", pair=Pair("x", "GPU0"))
    nic = result(371.0, HOST_MEMORY)
    left_out = LeftOut("all_reduce_perf, staged", "all_reduce_perf is not installed")
    limit, reason = conclusions([copies, nic], [left_out])
    assert limit.startswith("staged traffic of GPU0 over mlx5_0 can reach at most 210 Gb/s: ")
    assert "latency and its CPU time were not measured" in limit
    assert "all_reduce_perf is not installed" in reason
    assert conclusions([replace(copies, ending=Ending.FAILED), nic]) == ()
