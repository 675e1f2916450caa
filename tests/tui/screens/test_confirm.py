"""What may be run, copied and written of a plan, and what is kept of it."""

import os
from pathlib import Path

import pytest

from probes.host.machine.local import LocalHost
from probes.simulation.host import SimulatedHost
from tests.support.action_screens import NODE, QuickHost, asked, ended, is_on, listed, on, seen
from tests.support.pilot import SteppedClock, readings, shown, stepped_app, until
from tests.support.recordings import recorded
from tui.app import GdrtopApp
from tui.runtime.replay_source import ReplaySource
from tui.screens.actions.screen import ActionsScreen
from tui.screens.confirm import ConfirmScreen
from tui.screens.history import HistoryScreen
from tui.screens.overview.screen import OverviewScreen


def told(app: GdrtopApp) -> str:
    """What notifications say."""
    return "\n".join(notification.message for notification in app._notifications)


@pytest.mark.slow
async def test_the_script_is_copied_and_written_and_overwrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    clock = SteppedClock()
    app = stepped_app(QuickHost(NODE, clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await listed(pilot, clock)
        await asked(pilot, "load-modules")
        await pilot.press("c")
        assert "modprobe nvidia_peermem" in app.clipboard
        assert app.clipboard.startswith("#!/bin/sh")
        assert "OSC 52" in told(app)
        await pilot.press("w")
        file = tmp_path / "gdrtop-load-modules-hgx-h100.sh"
        assert file.read_text() == app.clipboard
        assert str(file) in told(app)
        file.write_text("mine")
        await pilot.press("w")
        assert file.read_text() == "mine"
        assert "already exists" in told(app)
        assert os.listdir(tmp_path) == [file.name]


async def nothing_runs(app: GdrtopApp, clock: SteppedClock, why: str) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 1)
        await pilot.press("x")
        await on(pilot, ActionsScreen)
        await until(pilot, lambda: why in seen(pilot, "summary"))
        await asked(pilot, "load-modules")
        assert why in seen(pilot, "plan")
        assert why in seen(pilot, "question")
        await pilot.press("c")
        assert "modprobe" in app.clipboard
        await pilot.press("enter", "y")
        await pilot.pause()
        assert is_on(pilot, ConfirmScreen)


@pytest.mark.slow
async def test_read_only_shows_plans_and_runs_nothing() -> None:
    clock = SteppedClock()
    host = QuickHost(NODE, clock=clock)
    app = GdrtopApp(lambda: host, host.origin, None, read_only=True)
    await nothing_runs(app, clock, "--read-only")


@pytest.mark.slow
async def test_a_recording_shows_plans_and_runs_nothing() -> None:
    clock = SteppedClock()
    host = recorded(SimulatedHost(NODE, clock=clock), clock, 2)
    app = GdrtopApp(lambda: host, host.origin, None, ReplaySource(host))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "1/2" in shown(pilot, "head"))
        await pilot.press("x")
        await on(pilot, ActionsScreen)
        await until(pilot, lambda: "this is a recording" in seen(pilot, "summary"))
        await asked(pilot, next(offer.id for offer in app.actions.state.offers if offer.plan is not None))
        await pilot.press("enter", "y")
        assert is_on(pilot, ConfirmScreen)


async def test_a_tree_of_files_runs_nothing(tmp_path: Path) -> None:
    clock = SteppedClock()
    host = LocalHost(str(tmp_path))
    async with GdrtopApp(lambda: host, host.origin, None).run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 1)
        await pilot.press("x")
        await until(pilot, lambda: is_on(pilot, ActionsScreen) and "tree of files" in seen(pilot, "summary"))


@pytest.mark.slow
async def test_past_runs_are_listed_and_undone() -> None:
    clock = SteppedClock()
    host = QuickHost(NODE, clock=clock)
    app = stepped_app(host)
    async with app.run_test(size=(120, 40)) as pilot:
        await listed(pilot, clock)
        await pilot.press("H")
        await on(pilot, HistoryScreen)
        await until(pilot, lambda: "gdrtop has not run anything" in seen(pilot, "runs"))
        await pilot.press("H", "escape")  # from the overview
        await on(pilot, OverviewScreen)
        await pilot.press("H")
        await on(pilot, HistoryScreen)
        await asked(pilot, "load-modules")
        await pilot.press("enter")
        await ended(pilot)
        clock.now += 60
        await pilot.press("escape", "escape", "H")
        await on(pilot, HistoryScreen)
        await until(pilot, lambda: "Load missing modules" in seen(pilot, "runs"))
        assert "✓ done" in seen(pilot, "runs")
        assert "1 modprobe nvidia_peermem" in seen(pilot, "steps")
        await pilot.press("u")
        await on(pilot, ConfirmScreen)
        assert "rmmod nvidia_peermem" in seen(pilot, "plan")
        await pilot.press("enter", *"hgx-h100", "enter")
        await ended(pilot)
        assert "new     · peermem-not-loaded" in seen(pilot, "console")
        await pilot.press("escape")
        await on(pilot, HistoryScreen)
        await pilot.press("escape", "H")
        await until(pilot, lambda: "Undo: Load" in seen(pilot, "runs"))
        await pilot.press("down", "u")
        await until(pilot, lambda: "already been undone" in told(app))
        assert is_on(pilot, HistoryScreen)


@pytest.mark.slow
async def test_the_palette_opens_a_plan() -> None:
    clock = SteppedClock()
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 2)
        await pilot.press("ctrl+p")
        await pilot.press(*"every boot")
        await until(pilot, lambda: pilot.app.screen.query("CommandList").first().option_count == 1)
        await pilot.press("down", "enter")
        await on(pilot, ConfirmScreen)
        assert "at every boot" in seen(pilot, "summary")


@pytest.mark.slow
async def test_the_console_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    clock = SteppedClock()
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=(80, 24)) as pilot:
        await readings(pilot, clock, 2)
        await asked(pilot, "load-modules")
        await pilot.press("enter")
        await ended(pilot)
        await pilot.press("w")
        (file,) = tmp_path.iterdir()
        text = file.read_text()
        assert "modprobe nvidia_peermem" in text
        assert "CHECKED AGAIN" in text
        assert file.name.startswith("gdrtop-load-modules-hgx-h100-")
