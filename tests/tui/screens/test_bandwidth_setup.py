"""The settings of a bandwidth test: rows that fit the node, and all that follows from them."""

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from probes.bandwidth.model.planned_series import Pair
from probes.bandwidth.model.result import Result
from probes.simulation.host import SimulatedHost
from tests.support.action_screens import on, question, seen
from tests.support.bandwidth_screens import planned, scripted, set_up
from tests.support.pilot import SteppedClock, overview, readings, stepped_app, until
from tests.support.sample_results import MORNING, result
from tui.app import GdrtopApp
from tui.bandwidth.results_store import MemoryResultsStore
from tui.screens.bandwidth_setup import BandwidthSetupScreen

SIZE = (120, 40)
_MOST_PRESSES = 40


def value(pilot: Pilot[None], label: str) -> str:
    """What a row of the settings says; "" where there is no such row."""
    rows = [line for line in seen(pilot, "settings").splitlines() if line.startswith(label)]
    return rows[0][len(label) :].strip("‹›[] ") if rows else ""


async def to_row(pilot: Pilot[None], label: str) -> None:
    for _ in range(_MOST_PRESSES):
        lines = seen(pilot, "settings").splitlines()
        if any(line.startswith(label) and ("‹" in line or "[" in line) for line in lines):
            return
        await pilot.press("down")
    raise AssertionError(seen(pilot, "settings"))


async def to_test(pilot: Pilot[None], tool: str) -> None:
    for _ in range(_MOST_PRESSES):
        if value(pilot, "Test").startswith(tool):
            return
        await pilot.press("right")
    raise AssertionError(seen(pilot, "settings"))


@pytest.mark.slow
async def test_it_begins_with_the_first_gpu_and_its_best_nic() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=SIZE) as pilot:
        await set_up(pilot, clock)
        assert "SIMULATED" in seen(pilot, "head")
        assert value(pilot, "Test").startswith("ib_write_bw")
        assert value(pilot, "GPU").startswith("GPU0")
        assert value(pilot, "NIC").startswith("mlx5_0 PIX•")
        assert value(pilot, "Pairs") == "this GPU and NIC"
        told = seen(pilot, "planned")
        assert "at most 400 Gb/s: port 1 of mlx5_0" in told
        assert "takes about 13 s" in told
        assert "shows: bandwidth of RDMA writes from GPU memory over mlx5_0 via DMA-BUF" in told
        assert "does not show: nvidia-peermem" in told
        assert "numactl --cpunodebind=0" in told
        assert "--use_cuda_dmabuf 127.0.0.1" in told
        assert "used by" in told


async def test_what_is_selected_on_the_overview_is_measured() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("pcie-l40s", clock=clock)).run_test(size=SIZE) as pilot:
        await readings(pilot, clock, 2)
        await pilot.press("down", "right", "b")
        await on(pilot, BandwidthSetupScreen)
        await planned(pilot)
        assert value(pilot, "GPU").startswith("GPU0")
        assert value(pilot, "NIC").startswith("mlx5_1 NODE")
        assert "-d mlx5_1" in seen(pilot, "planned")


@pytest.mark.slow
async def test_another_gpu_has_another_best_nic() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=SIZE) as pilot:
        await set_up(pilot, clock)
        await to_row(pilot, "GPU")
        await pilot.press("left")
        await planned(pilot)
        assert value(pilot, "GPU").startswith("GPU7")
        assert "•" in value(pilot, "NIC")
        assert not value(pilot, "NIC").startswith("mlx5_0 ")


@pytest.mark.slow
async def test_earlier_results_and_a_baseline_that_cannot_be_had_say_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    why = "the results file results.jsonl cannot be read: other users may write to it"
    monkeypatch.setattr(MemoryResultsStore, "why_unread", lambda kept: why)
    monkeypatch.setattr(MemoryResultsStore, "no_baseline", lambda *_: "there is a baseline for others")
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=SIZE) as pilot:
        await set_up(pilot, clock)
        await until(pilot, lambda: "There is a baseline for others." in seen(pilot, "planned"))
        assert "The results file results.jsonl cannot be read" in seen(pilot, "planned")


@pytest.mark.slow
async def test_the_last_result_is_compared_with_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SteppedClock()
    pair, origin = Pair("0000:18:00.0", "GPU0", "mlx5_0", 1), "simulated hgx-h100"
    earlier = tuple(
        result(gbps, taken_at=MORNING + gbps, node="hgx-h100", origin=origin, pair=pair)
        for gbps in (182.0, 184.0, 186.0)
    )
    monkeypatch.setattr(MemoryResultsStore, "results", lambda *_: earlier)
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=SIZE) as pilot:
        await set_up(pilot, clock)
        await until(pilot, lambda: "3 results: 182 to 186 Gb/s" in seen(pilot, "planned"))
        assert "last measured 186 of 200 Gb/s" in seen(pilot, "planned")


async def test_a_fault_in_loading_earlier_results_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def results(kept: MemoryResultsStore) -> tuple[Result, ...]:
        raise OSError("no such disk")

    monkeypatch.setattr(MemoryResultsStore, "results", results)
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=SIZE) as pilot:
        await set_up(pilot, clock)
        told = "Earlier bandwidth results could not be read: OSError: no such disk"
        await until(
            pilot, lambda: told in [notification.message for notification in pilot.app._notifications]
        )


@pytest.mark.slow
async def test_rows_without_a_meaning_are_not_there() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=SIZE) as pilot:
        await set_up(pilot, clock)
        await to_row(pilot, "Message size")
        await pilot.press("right")
        assert value(pilot, "Message size").startswith("all")
        assert not value(pilot, "Duration")
        await pilot.press("left")
        assert value(pilot, "Duration") == "10 s"
        await to_row_upwards(pilot, "Test")
        await to_test(pilot, "ib_write_lat")
        assert not value(pilot, "Queue pairs")
        await to_test(pilot, "all_reduce_perf")
        assert not value(pilot, "Setup")
        assert value(pilot, "Through").startswith("NVLink")
        await planned(pilot)
        assert "never uses a NIC" in " ".join(seen(pilot, "planned").split())


async def to_row_upwards(pilot: Pilot[None], label: str) -> None:
    for _ in range(12):
        await pilot.press("up")
    assert any(line.startswith(label) and "‹" in line for line in seen(pilot, "settings").splitlines())


@pytest.mark.slow
async def test_a_test_is_bound_or_not() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=SIZE) as pilot:
        await set_up(pilot, clock)
        assert value(pilot, "Bind").startswith("CPU and memory to the NIC's NUMA node")
        await to_row(pilot, "Bind")
        await pilot.press("right")
        await planned(pilot)
        assert value(pilot, "Bind") == "no"
        assert "numactl" not in seen(pilot, "planned")


@pytest.mark.slow
async def test_a_tool_that_is_missing_says_how_to_get_it() -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100+perftest-missing", clock=clock))
    async with app.run_test(size=SIZE) as pilot:
        await set_up(pilot, clock)
        assert "not installed" in value(pilot, "Test")
        told = " ".join(seen(pilot, "planned").split())
        assert "This cannot run: ib_write_bw is not installed" in told
        assert "install perftest" in told
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(pilot.app.screen, BandwidthSetupScreen)
        assert "This cannot run" in seen(pilot, "question")


@pytest.mark.slow
async def test_without_cuda_host_memory_can_be_measured() -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100+perftest-without-cuda", clock=clock))
    async with app.run_test(size=SIZE) as pilot:
        await set_up(pilot, clock)
        assert "built without CUDA" in seen(pilot, "planned")
        await to_row(pilot, "Memory")
        await pilot.press("right")
        await planned(pilot)
        assert value(pilot, "Memory") == "host memory"
        assert not value(pilot, "GPU")
        assert "takes about" in seen(pilot, "planned")
        assert "--use_cuda" not in seen(pilot, "planned")


@pytest.mark.slow
async def test_a_comparison_names_its_three_tests() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=SIZE) as pilot:
        await set_up(pilot, clock)
        await to_row(pilot, "Memory")
        await pilot.press("left")
        await planned(pilot)
        told = seen(pilot, "planned")
        assert "takes 3 tests, about 39 s" in told
        for title in ("mlx5_0 · host memory", "GPU0 → mlx5_0 · nvidia-peermem", "GPU0 → mlx5_0 · DMA-BUF"):
            assert title in told
        for proved in ("from host memory over mlx5_0", "via nvidia-peermem", "via DMA-BUF"):
            assert proved in " ".join(told.split())


@pytest.mark.slow
async def test_a_server_has_the_peers_command_to_be_copied() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=SIZE) as pilot:
        await set_up(pilot, clock, "down", "right")
        assert "THEN START THIS ON THE PEER" in seen(pilot, "planned")
        await pilot.press("c")
        copied = pilot.app.clipboard
        assert "ib_write_bw -d mlx5_0" in copied
        assert copied.endswith(" hgx-h100")
        assert copied == " ".join(command_shown(pilot).split())


def command_shown(pilot: Pilot[None]) -> str:
    """The peer's command as the pane shows it, its lines joined."""
    lines = seen(pilot, "planned").splitlines()
    lines = lines[next(at for at, shown_line in enumerate(lines) if "ON THE PEER" in shown_line) + 1 :]
    last = next(at for at, shown_line in enumerate(lines) if not shown_line.endswith("\\"))
    return " ".join(line.removesuffix("\\") for line in lines[: last + 1])


@pytest.mark.slow
async def test_a_peers_name_is_typed_and_checked() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=SIZE) as pilot:
        await set_up(pilot, clock, "down", "right", "right")
        assert "no peer was specified" in seen(pilot, "planned")
        await pilot.press("enter")
        typed = pilot.app.screen.query_one(Input)
        assert typed.has_focus
        await pilot.press(*"-oProxy", "left", "enter")
        await pilot.pause()
        assert typed.has_focus
        assert not value(pilot, "Peer").startswith("-o")
        typed.value = "node-b"
        await pilot.press("enter")
        await until(pilot, lambda: "START THIS ON THE PEER FIRST" in seen(pilot, "planned"))
        assert value(pilot, "Peer").startswith("node-b")
        assert not typed.display
        await pilot.press("p", "escape")
        assert isinstance(pilot.app.screen, BandwidthSetupScreen)


@pytest.mark.slow
async def test_somebody_who_would_feel_it_is_asked_for_and_escape_runs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes = scripted(monkeypatch)
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=SIZE) as pilot:
        await set_up(pilot, clock)
        await pilot.press("y")
        await pilot.press("enter")
        await until(pilot, lambda: "Run it anyway" in question(pilot))
        told = question(pilot)
        assert told.startswith("This would affect running jobs")
        assert "train.py" in told
        assert "port 1 of mlx5_0" in told
        assert "The job is simulated" in told
        await pilot.press("escape")
        await pilot.pause()
        assert "Run it anyway" not in question(pilot)
        await pilot.press("y")
        await pilot.pause()
        assert isinstance(pilot.app.screen, BandwidthSetupScreen)
        assert processes.started == []
        await pilot.press("escape")
        assert pilot.app.screen is overview(pilot)


@pytest.mark.slow
async def test_who_is_not_disturbed_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = scripted(monkeypatch)
    monkeypatch.setattr("tui.bandwidth.session.affected_by", lambda *_: ())
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=SIZE) as pilot:
        await set_up(pilot, clock)
        assert "would affect" not in seen(pilot, "planned")
        await pilot.press("enter")
        await until(pilot, lambda: len(processes.started) == 1)


@pytest.mark.slow
async def test_with_read_only_it_says_why_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = scripted(monkeypatch)
    clock = SteppedClock()
    host = SimulatedHost("hgx-h100", clock=clock)
    app = GdrtopApp(lambda: host, host.origin, interval=None, read_only=True)
    async with app.run_test(size=SIZE) as pilot:
        await set_up(pilot, clock, "enter", "y", "right")
        assert "No test can run here: gdrtop was started with --read-only." in seen(pilot, "planned")
        assert processes.started == []


@pytest.mark.slow
async def test_every_setting_fits_at_every_size() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("gb200", clock=clock)).run_test(size=(80, 24)) as pilot:
        await set_up(pilot, clock)
        for width, height in ((80, 24), (60, 15), (200, 60)):
            await pilot.resize_terminal(width, height)
            await pilot.press("home")
            for _ in range(12):
                await pilot.press("right", "down")
                for view in ("settings", "planned", "question"):
                    assert all(len(line) <= width for line in seen(pilot, view).splitlines())
            await planned(pilot)
