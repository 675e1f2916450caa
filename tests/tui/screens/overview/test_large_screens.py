"""The overview on large screens: more of what is known where panels have room beside their usual lines."""

import re

import pytest

from probes.bandwidth.model.planned_series import Pair
from probes.base.origin import origin_word
from probes.simulation.host import SimulatedHost
from tests.support.pilot import SteppedClock, examined, overview, readings, settled, shown, stepped_app
from tests.support.sample_results import result

LARGE = (200, 60)
BLOCKS = set("▁▂▃▄▅▆▇█")


@pytest.mark.slow
@pytest.mark.parametrize("size", [LARGE, (250, 80)], ids=str)
async def test_figures_and_graphs_of_a_job_stand_where_there_is_room(size: tuple[int, int]) -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100+nic-slow", clock=clock)).run_test(size=size) as pilot:
        await examined(pilot, clock)
        await readings(pilot, clock, 40)
        ranks = re.findall(r"rank (\d)  GPU\d +(\d+) Gb/s ([·▁-█]+)", shown(pilot, "jobs"))
        assert sorted(rank for rank, _, _ in ranks) == [*"01234567"]
        assert all(BLOCKS & {*graph} for _, _, graph in ranks)
        # The figure in the matrix is the rate of the rank on this GPU, and stands behind its NIC alone.
        rows = {row[:4]: row for row in shown(pilot, "matrix").splitlines()}
        for rank, rate, _ in ranks:
            assert re.findall(r"\d+", rows[f"GPU{rank}"][4:]) == [rate]
        ends = [row for row in shown(pilot, "topology").splitlines() if "GPU5" in row or "mlx5_6" in row]
        assert len(ends) == 2
        assert all(BLOCKS & {*row} for row in ends)
        assert "graphs: 2 min" in str(overview(pilot).query_one("#topology").border_title)
        findings = shown(pilot, "findings")
        assert "Fix       Find out what slows the NIC" in findings
        assert "Impact    A collective is as slow as its slowest NIC" in findings
        overview(pilot).query_one("#topology").focus()
        await pilot.press("down")
        await settled(pilot)
        assert "GPU0 → mlx5_0" in shown(pilot, "path")


async def test_a_measured_bandwidth_stands_in_its_cell_of_the_matrix() -> None:
    clock = SteppedClock()
    host = SimulatedHost("hgx-h100", clock=clock)
    async with stepped_app(host).run_test(size=LARGE) as pilot:
        await examined(pilot, clock)
        screen = overview(pilot)
        assert "(" not in shown(pilot, "matrix").partition("NCCL calls")[0]
        pair = Pair("0000:18:00.0", "GPU0", "mlx5_1", 1)
        screen.apply_results(
            (result(191.0, pair=pair, node=screen.hostname, origin=origin_word(host.origin)),)
        )
        row = next(row for row in shown(pilot, "matrix").splitlines() if row.startswith("GPU0"))
        assert re.search(r"PIX +\(191\)", row), row
        assert "( ) Gb/s measured" in shown(pilot, "matrix")


@pytest.mark.slow
async def test_a_gpu_that_stops_responding_is_marked_with_the_next_reading() -> None:
    clock = SteppedClock()
    host = SimulatedHost("hgx-h100+gpu-off-bus-live", clock=clock)
    async with stepped_app(host).run_test(size=LARGE) as pilot:
        await examined(pilot, clock)
        await readings(pilot, clock, 40)
        row = next(row for row in shown(pilot, "topology").splitlines() if "GPU5" in row)
        assert "GPU5✗does not respond" in row
