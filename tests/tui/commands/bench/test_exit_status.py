"""How a use of `gdrtop bench` ended: one status, and a sentence that says which test it is about."""

from dataclasses import replace

import pytest

from probes.bandwidth.model.planned_series import LeftOut, Pair
from probes.bandwidth.model.samples import BY_PEERMEM, HOST_MEMORY, About, Fact
from tests.support.sample_results import failed, result
from tui.commands.bench.exit_status import exit_status

DOWN = LeftOut("GPU3 → mlx5_3 · DMA-BUF", "port 1 of mlx5_3 is down")
OTHER = LeftOut("GPU4 → mlx5_4 · DMA-BUF", "port 1 of mlx5_4 is down")


@pytest.mark.parametrize("bar", [None, 100.0])
def test_what_a_sweep_left_out_has_not_passed(bar: float | None) -> None:
    status, told = exit_status([result(190.0)], 1, bar, "", (DOWN,))
    assert status == 2
    assert told == "1 of 2 tests skipped: GPU3 → mlx5_3 · DMA-BUF (port 1 of mlx5_3 is down)"
    status, told = exit_status([result(190.0)], 1, bar, "", (DOWN, OTHER))
    assert status == 2
    assert told.startswith("2 of 3 tests skipped: GPU3")
    assert told.endswith(", and 1 more")


def test_with_nothing_left_out_it_has() -> None:
    assert exit_status([result(190.0)], 1, 100.0, "")[0] == 0
    assert exit_status([result(190.0)], 1, 195.0, "")[0] == 1


def test_a_failure_is_told_first_and_an_interrupt_before_all() -> None:
    assert "failed" in exit_status([failed()], 1, None, "", (DOWN,))[1]
    assert exit_status([result()], 2, None, "interrupted", (DOWN,)) == (
        130,
        "interrupted: both ends stopped, 1 of 2 tests completed",
    )
    assert exit_status([], 2, None, "interrupted") == (130, "interrupted, 0 of 2 tests completed")


def test_other_memory_than_asked_for_has_not_passed() -> None:
    other = result(190.0, facts=(Fact(About.MEMORY, HOST_MEMORY, ""),))
    status, told = exit_status([other], 1, 100.0, "")
    assert status == 2
    assert told == (
        "1 of 1 test did not use the requested memory: GPU0 → mlx5_0 · DMA-BUF measured host memory"
    )
    # In a comparison it is a finding where another path works, and makes up for no failure.
    assert exit_status([other, result(190.0, BY_PEERMEM)], 2, 100.0, "")[0] == 0
    assert exit_status([other, failed(BY_PEERMEM)], 2, 100.0, "")[0] == 2


PEERMEM_LOST = LeftOut("GPU0 → mlx5_0 · nvidia-peermem", "this perftest is built without CUDA")
DMABUF_LOST = LeftOut("GPU0 → mlx5_0 · DMA-BUF", "this perftest is built without CUDA")


def test_a_comparison_without_any_gpu_memory_has_not_passed() -> None:
    host = result(190.0, HOST_MEMORY)
    status, told = exit_status([host], 1, 100.0, "", (PEERMEM_LOST, DMABUF_LOST))
    assert status == 2
    assert told.startswith("2 of 3 tests skipped: GPU0 → mlx5_0 · nvidia-peermem")
    # One path that was measured is enough, of the same pair.
    assert exit_status([host, result(190.0)], 2, 100.0, "", (PEERMEM_LOST,))[0] == 0
    other = replace(result(190.0), pair=Pair("0000:19:00.0", "GPU1", "mlx5_0", 1))
    assert exit_status([host, other], 2, 100.0, "", (PEERMEM_LOST, DMABUF_LOST))[0] == 2


@pytest.mark.parametrize(
    ("routes", "told"),
    [
        (("NET/Socket/0",), "measured TCP instead of RDMA"),
        (("NET/IB/0",), "measured host memory"),
        ((), "measured an unknown path"),
        (("P2P/CUMEM",), "measured an unknown path"),
    ],
)
def test_a_collective_without_gpudirect_rdma_over_nics_has_not_passed(
    routes: tuple[str, ...], told: str
) -> None:
    facts = tuple(Fact(About.ROUTE, route, "") for route in routes)
    measured = result(
        190.0, "", tool="all_reduce_perf", title="8 GPUs · all_reduce_perf over the NICs", facts=facts
    )
    status, reason = exit_status([replace(measured, over_network=True)], 1, 100.0, "")
    assert status == 2
    assert told in reason
    assert exit_status([measured], 1, 100.0, "")[0] == 0  # inside the node every way is right
    direct = Fact(About.ROUTE, "NET/IB/0/GDRDMA", "")
    assert exit_status([replace(measured, over_network=True, facts=(direct,))], 1, 100.0, "")[0] == 0
