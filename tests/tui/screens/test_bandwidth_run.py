"""A series of bandwidth tests under way: its rows, its judgment, its end, and leaving it."""

from pathlib import Path

import pytest
from textual.pilot import Pilot

from probes.bandwidth.model.samples import Sample
from probes.simulation.host import SimulatedHost
from tests.support.action_screens import NODE, is_on, on, question, seen
from tests.support.bandwidth_screens import (
    HEADING,
    begun,
    completed,
    measured,
    met,
    over,
    planned,
    row,
    scripted,
    set_up,
    started,
)
from tests.support.pilot import SteppedClock, overview, shown, stepped_app, until
from tui.bandwidth.events import SampleReceived
from tui.screens.ask import AskScreen
from tui.screens.bandwidth_run.screen import BandwidthRunScreen
from tui.screens.bandwidth_run.state import MOST_LINES
from tui.screens.bandwidth_setup import BandwidthSetupScreen
from tui.screens.confirm import ConfirmScreen
from widgets.base.lines import plain
from widgets.base.lines_view import LinesView

SIZE = (120, 40)
TO_COMPARE = ("down", "down", "down", "down", "down", "left")


@pytest.mark.slow
async def test_rows_come_as_they_are_printed_and_the_end_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    async with begun(monkeypatch) as (pilot, clock, processes):
        assert "SIMULATED" in seen(pilot, "head")
        await met(pilot, clock, processes)
        await measured(pilot, clock, processes.started[1], 386.0, 387.0)
        assert "386.0" in seen(pilot, "rows")
        assert "server │ * Waiting for client" in seen(pilot, "lines")
        assert "client │  1048576" in seen(pilot, "lines")
        assert "test 1/1 · measuring" in seen(pilot, "summary")
        assert "at most 400 Gb/s: port 1 of mlx5_0" in seen(pilot, "chart")
        assert "█" in seen(pilot, "chart")
        await measured(pilot, clock, processes.started[1], *[388.0] * 8)
        await over(pilot)
        assert "388 of 400 Gb/s, 97 %" in seen(pilot, "summary")
        assert "388 of 400 Gb/s, 97 %" in seen(pilot, "rows")
        assert all(process.was_ended for process in processes.started)
        await pilot.press("escape", "escape")
        await until(pilot, lambda: pilot.app.screen is overview(pilot))
        await pilot.press("down")
        await until(pilot, lambda: "388 of 400 Gb/s, 97 %" in shown(pilot, "path"))
        assert "DMA-BUF · just now" in shown(pilot, "path")
        assert "bandwidth" not in shown(pilot, "head")
        overview(pilot).query_one("#matrix").focus()
        await pilot.press("z")
        await until(pilot, lambda: "MEASURED" in shown(pilot, "matrix"))
        assert "388" in shown(pilot, "matrix")


@pytest.mark.slow
async def test_below_the_line_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with begun(monkeypatch) as (pilot, clock, processes):
        await met(pilot, clock, processes)
        await completed(pilot, clock, processes.started[1], 98.0)
        await over(pilot)
        assert "▲ done · 98 of 400 Gb/s, 24 %" in seen(pilot, "summary")


@pytest.mark.slow
async def test_cancelling_ends_both_ends_and_the_series(monkeypatch: pytest.MonkeyPatch) -> None:
    async with begun(monkeypatch, *TO_COMPARE) as (pilot, clock, processes):
        await met(pilot, clock, processes)
        await measured(pilot, clock, processes.started[1], 386.0)
        await pilot.press("k", "ctrl+k", "y")
        await over(pilot)
        assert "canceled" in seen(pilot, "summary")
        assert "canceled · 0 of 3 tests measured" in seen(pilot, "summary")
        assert "near line rate" not in seen(pilot, "summary")
        assert "2 tests were not started" in seen(pilot, "rows")
        assert len(processes.started) == 2
        assert all(process.was_ended for process in processes.started)


@pytest.mark.slow
async def test_skipping_goes_on_with_the_next_test(monkeypatch: pytest.MonkeyPatch) -> None:
    async with begun(monkeypatch, *TO_COMPARE) as (pilot, clock, processes):
        await met(pilot, clock, processes)
        await measured(pilot, clock, processes.started[1], 386.0)
        await pilot.press("ctrl+n")
        await until(pilot, lambda: "test 2/3" in seen(pilot, "summary"))
        assert all(process.was_ended for process in processes.started[:2])
        assert "mlx5_0 · host memory  canceled (386 Gb/s so far)" in seen(pilot, "rows")


@pytest.mark.slow
async def test_a_comparison_says_what_it_means(monkeypatch: pytest.MonkeyPatch) -> None:
    async with begun(monkeypatch, *TO_COMPARE) as (pilot, clock, processes):
        for number, gbps in ((1, 390.0), (2, 150.0), (3, 389.0)):
            await met(pilot, clock, processes, number)
            await completed(pilot, clock, processes.started[2 * number - 1], gbps)
            await until(pilot, lambda number=number: seen(pilot, "lines").count(" of 400 Gb/s") == number)
        await over(pilot)
        assert "3 of 3 tests measured, 2 near line rate" in seen(pilot, "summary")
        assert "A host memory  B nvidia-peermem  C DMA-BUF" in seen(pilot, "chart")
        told = " ".join(seen(pilot, "rows").split())
        assert "GPUDirect RDMA via DMA-BUF works" in told
        assert "nvidia-peermem is 61 % slower than DMA-BUF" in told


@pytest.mark.slow
async def test_a_failure_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async with begun(monkeypatch) as (pilot, clock, processes):
        await until(pilot, lambda: len(processes.started) == 1)
        processes.started[0].say("Couldn't allocate MR", "failed to create mr", "Failed to create MR")
        processes.started[0].finish(1)
        await until(pilot, lambda: "failed" in seen(pilot, "rows") or clock_goes(clock))
        assert "✗" in seen(pilot, "summary")
        assert "Couldn't allocate MR" in seen(pilot, "lines")


def clock_goes(clock: SteppedClock, seconds: float = 1.0) -> bool:
    clock.now += seconds
    return False


@pytest.mark.slow
async def test_leaving_the_screen_lets_the_test_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with begun(monkeypatch) as (pilot, clock, processes):
        await met(pilot, clock, processes)
        await pilot.press("escape")
        await on(pilot, BandwidthSetupScreen)  # where it was started
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is overview(pilot))
        assert "bandwidth test 1/1" in shown(pilot, "head")
        assert not any(process.was_ended for process in processes.started)
        await pilot.press("b")
        await on(pilot, BandwidthRunScreen)
        await measured(pilot, clock, processes.started[1], 386.0)
        await pilot.press("escape")
        for _ in range(11):
            clock.now += 1.0
            processes.started[1].say(row(387.0))
            await pilot.pause(0.1)
        await until(pilot, lambda: "press b" in shown(pilot, "head"))
        await pilot.press("b")
        await on(pilot, BandwidthRunScreen)
        await over(pilot)
        await pilot.press("b")
        await until(pilot, lambda: pilot.app.screen is overview(pilot))
        await pilot.press("b")
        await on(pilot, BandwidthSetupScreen)
        await until(pilot, lambda: "last measured 387 of 400 Gb/s" in seen(pilot, "planned"))
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is overview(pilot))
        overview(pilot).query_one("#topology").focus()
        await pilot.press("z")  # alone, for beside other panels there is no room for it
        await until(pilot, lambda: "✓387G" in shown(pilot, "topology"))


@pytest.mark.slow
async def test_quitting_ends_both_ends_first(monkeypatch: pytest.MonkeyPatch) -> None:
    processes, clock = scripted(monkeypatch), SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))
    async with app.run_test(size=SIZE) as pilot:
        await set_up(pilot, clock)
        await started(pilot)
        await met(pilot, clock, processes)
        await pilot.press("escape", "ctrl+c")
        await on(pilot, AskScreen)
        await pilot.press("y")
        await until(pilot, lambda: not app.is_running or app._exit)
        assert all(process.was_ended for process in processes.started)


@pytest.mark.slow
async def test_a_hangup_ends_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    processes, clock = scripted(monkeypatch), SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))
    async with app.run_test(size=SIZE) as pilot:
        await set_up(pilot, clock)
        await started(pilot)
        await met(pilot, clock, processes)
        app.hang_up("the terminal is gone")
    app.quitting.finish()
    assert len(processes.started) == 2
    assert all(process.was_ended for process in processes.started)


@pytest.mark.slow
async def test_a_text_for_a_ticket_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    async with begun(monkeypatch) as (pilot, clock, processes):
        await met(pilot, clock, processes)
        await completed(pilot, clock, processes.started[1], 386.0)
        await over(pilot)
        await pilot.press("w")
        await pilot.pause()
    (file,) = tmp_path.iterdir()
    text = file.read_text()
    assert file.name.startswith("gdrtop-bandwidth-hgx-h100-")
    assert "386 of 400 Gb/s" in text
    assert "simulated" in text.lower()
    assert "ib_write_bw -d mlx5_0" in text


@pytest.mark.slow
async def test_a_baseline_is_what_the_next_test_is_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    async with begun(monkeypatch) as (pilot, clock, processes):
        await met(pilot, clock, processes)
        await completed(pilot, clock, processes.started[1], 386.0)
        await over(pilot)
        await pilot.press("B", "b")
        await on(pilot, BandwidthSetupScreen)
        await until(pilot, lambda: "baseline 386 of 400 Gb/s" in seen(pilot, "planned"))


@pytest.mark.slow
async def test_a_bad_result_and_another_baseline_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with begun(monkeypatch) as (pilot, clock, processes):
        await met(pilot, clock, processes)
        await completed(pilot, clock, processes.started[1], 98.0)
        await over(pilot)
        await pilot.press("B")
        await until(pilot, lambda: "below the limit of the path." in question(pilot))
        assert "Saved as the baseline" not in notified(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: "Saved as the baseline" in notified(pilot))
        await asked_again(pilot, clock)
        settings = pilot.app.screen_stack[-2].query_one("#planned", LinesView)
        assert "baseline 98 of 400 Gb/s" in "\n".join(map(plain, settings.lines))
        await pilot.press("y")
        await on(pilot, BandwidthRunScreen)
        await met(pilot, clock, processes, 2, series=2)
        await completed(pilot, clock, processes.started[3], 386.0)
        await over(pilot)
        await pilot.press("B")
        await until(pilot, lambda: "the baseline has 98 of 400 Gb/s" in question(pilot))
        assert notified(pilot).count("Saved as the baseline") == 1


def notified(pilot: Pilot[None]) -> str:
    """All that was told, also what is not shown any more."""
    return "\n".join(notification.message for notification in pilot.app._notifications)


async def asked_again(pilot: Pilot[None], clock: SteppedClock) -> None:
    """The same is to be run once more, and it is asked whether all the same."""
    clock.now += 1.0
    await pilot.press("ctrl+r")
    await on(pilot, AskScreen)
    await until(pilot, lambda: "Run it anyway" in question(pilot))


@pytest.mark.slow
async def test_running_it_again_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with begun(monkeypatch) as (pilot, clock, processes):
        await until(pilot, lambda: len(processes.started) == 1)
        await pilot.press("ctrl+k", "y")
        await over(pilot)
        await asked_again(pilot, clock)
        await pilot.press("y")
        await until(pilot, lambda: len(processes.started) == 2)


@pytest.mark.slow
async def test_again_is_the_test_on_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    async with begun(monkeypatch) as (pilot, clock, processes):
        await met(pilot, clock, processes)
        await completed(pilot, clock, processes.started[1], 386.0)
        await over(pilot)
        await asked_again(pilot, clock)
        await pilot.pause()
        assert "Run again with the same settings" in question(pilot)
        await pilot.press("y")
        await until(pilot, lambda: len(processes.started) == 3)
        await pilot.press("ctrl+k", "y")
        await over(pilot)
        assert processes.started[2].argv == processes.started[0].argv


@pytest.mark.slow
async def test_no_to_running_it_again_shows_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    async with begun(monkeypatch) as (pilot, clock, processes):
        await until(pilot, lambda: len(processes.started) == 1)
        await pilot.press("ctrl+c", "ctrl+k")
        await over(pilot)
        await asked_again(pilot, clock)
        await pilot.press("escape")
        await planned(pilot)
        assert "again" not in seen(pilot, "planned")
        await pilot.press("y")
        await pilot.pause()
        assert len(processes.started) == 1


@pytest.mark.slow
async def test_no_action_begins_while_a_test_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with begun(monkeypatch, name=NODE) as (pilot, clock, processes):
        await met(pilot, clock, processes)
        await pilot.press("escape", "escape", "l")
        await on(pilot, ConfirmScreen)
        await pilot.press("enter")
        await until(pilot, lambda: "A bandwidth test is running" in notified(pilot))
        assert is_on(pilot, ConfirmScreen)


@pytest.mark.slow
async def test_rows_that_are_not_kept_any_more_have_had_their_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with begun(monkeypatch) as (pilot, clock, processes):
        await met(pilot, clock, processes)
        screen = pilot.app.screen
        assert isinstance(screen, BandwidthRunScreen)
        sample = Sample("RDMA_Write", "", size_bytes=1 << 20, gbps=386.0)
        screen.state.apply([SampleReceived(sample, float(second)) for second in range(1000)])
        screen.draw()
        await until(pilot, lambda: "601 s" in seen(pilot, "chart"))
        assert " 1 s" not in seen(pilot, "chart")


@pytest.mark.slow
async def test_a_flood_of_lines_neither_freezes_the_screen_nor_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with begun(monkeypatch) as (pilot, clock, processes):
        await met(pilot, clock, processes)
        processes.started[1].say(*(f"line {number}" for number in range(20_000)), HEADING, row(386.0))
        await pilot.press("o", "o")  # the keys are heard all the while
        await until(pilot, lambda: not pilot.app.screen.query_one("#chart").size.height)
        await pilot.press("o")
        await until(pilot, lambda: "386.0" in seen(pilot, "rows"))
        assert len(seen(pilot, "lines").splitlines()) < 3 * MOST_LINES
        await pilot.press("ctrl+k")
        await on(pilot, AskScreen)
        await pilot.press("y")
        await over(pilot)


async def test_what_the_ends_print_cannot_reach_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    async with begun(monkeypatch) as (pilot, clock, processes):
        await met(pilot, clock, processes)
        processes.started[1].say("[bold]no markup[/bold]", "x" * 400)
        await until(pilot, lambda: "[bold]no markup[/bold]" in seen(pilot, "lines"))
        assert sum(line.count("x") for line in seen(pilot, "lines").splitlines() if "xxx" in line) == 400


@pytest.mark.slow
async def test_chart_and_console_change_places_on_a_small_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    async with begun(monkeypatch, size=(80, 24)) as (pilot, _clock, processes):
        await until(pilot, lambda: len(processes.started) == 1)

        def sizes() -> list[int]:
            return [pilot.app.screen.query_one(f"#{name}").size.height for name in ("chart", "rows", "lines")]

        assert [height > 0 for height in sizes()] == [True, True, False]
        await pilot.press("o")
        await until(pilot, lambda: [height > 0 for height in sizes()] == [False, False, True])
        processes.started[0].say("a line")
        await until(pilot, lambda: "server │ a line" in seen(pilot, "lines"))
        await pilot.press("o")
        await until(pilot, lambda: sizes()[0] > 0)


@pytest.mark.slow
async def test_a_simulated_node_plays_a_test_to_its_end() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("dgx-a100", clock=clock)).run_test(size=SIZE) as pilot:
        await set_up(pilot, clock)
        await started(pilot)
        await until(pilot, lambda: "done" in seen(pilot, "summary") or clock_goes(clock, 0.2))
        assert is_on(pilot, BandwidthRunScreen)
        assert "of 200 Gb/s" in seen(pilot, "summary")
        assert "✓" in seen(pilot, "rows")
        await pilot.press("b")  # leaves the run, and asks for the next one
        await planned(pilot)
