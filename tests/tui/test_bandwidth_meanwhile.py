"""Somebody begins to use the node while bandwidth tests are set up, or between two of them."""

from pathlib import Path

import pytest

from probes.base.origin import Origin, Source
from probes.host.protocol import Host
from probes.snapshot.examination import Examination
from probes.snapshot.rates import Reading
from tests.support.action_screens import on, question, seen
from tests.support.bandwidth_screens import completed, met, printed, scripted, set_up
from tests.support.pilot import SteppedClock, overview, shown, stepped_app, until
from tests.support.quiet_node import QuietHost
from tui.bandwidth.impact_check import reread
from tui.screens.bandwidth_run.screen import BandwidthRunScreen

SIZE = (120, 40)
TO_COMPARE = ("down", "down", "down", "down", "down", "left")
HOLDS = "evaluate.py (carol, Slurm job 4713, pid 4242) has mlx5_0 open, though no traffic flows now"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("tui.bandwidth.session._LOCK", str(tmp_path / "lock"))


async def test_who_has_come_since_the_node_was_examined_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    processes, clock = scripted(monkeypatch), SteppedClock()
    host = QuietHost(clock=clock)
    async with stepped_app(host).run_test(size=SIZE) as pilot:
        await set_up(pilot, clock)
        assert "would affect" not in seen(pilot, "planned")
        host.start_job()
        clock.now += 1.0
        await pilot.press("enter")
        await until(pilot, lambda: "Run it anyway" in question(pilot))
        assert HOLDS in question(pilot)
        assert processes.started == []


@pytest.mark.slow
async def test_who_has_gone_since_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    processes, clock = scripted(monkeypatch), SteppedClock()
    host = QuietHost(clock=clock)
    host.start_job()
    async with stepped_app(host).run_test(size=SIZE) as pilot:
        await set_up(pilot, clock)
        assert HOLDS in seen(pilot, "planned")
        host.stop_job()
        clock.now += 1.0
        await pilot.press("enter")
        await until(pilot, lambda: len(processes.started) == 1)


@pytest.mark.slow
async def test_a_node_that_cannot_be_looked_at_lets_nothing_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    processes, clock = scripted(monkeypatch), SteppedClock()

    def fail(*_: object) -> None:
        raise OSError("no such disk")

    monkeypatch.setattr("tui.bandwidth.session.with_processes", fail)
    async with stepped_app(QuietHost(clock=clock)).run_test(size=SIZE) as pilot:
        await set_up(pilot, clock)
        clock.now += 1.0
        await pilot.press("enter")
        await until(pilot, lambda: "no such disk" in seen(pilot, "summary"))
        assert processes.started == []
        assert "Enter: run" in seen(pilot, "question")


@pytest.mark.slow
async def test_who_comes_between_two_tests_ends_the_series_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes, clock = scripted(monkeypatch), SteppedClock()

    def look(host: Host, examination: Examination, pause: object) -> tuple[Examination, Reading]:
        del pause

        def step(seconds: float) -> None:
            clock.now += seconds

        return reread(host, examination, step)

    monkeypatch.setattr("tui.bandwidth.session.reread", look)
    host = QuietHost(clock=clock)
    host.origin = Origin(Source.LIVE)
    async with stepped_app(host).run_test(size=SIZE) as pilot:
        await set_up(pilot, clock, *TO_COMPARE)
        clock.now += 1.0
        await pilot.press("enter")
        await on(pilot, BandwidthRunScreen)
        await met(pilot, clock, processes)
        host.start_job()
        await completed(pilot, clock, processes.started[1], 386.0)
        told = f"▲ running jobs would now be affected: {HOLDS[:60]}"  # as much as the line has room for
        await until(pilot, lambda: told in seen(pilot, "summary"))
        await pilot.pause()
        assert len(processes.started) == 2
        assert all(process.was_ended for process in processes.started)
        assert told in printed(pilot)
        rows = " ".join(seen(pilot, "rows").split())
        assert f"would now be affected: {HOLDS}." in rows
        assert "386 of 400 Gb/s" in rows
        assert "2 tests were not started" in rows
        assert "Nothing was measured" not in rows
        await pilot.press("escape", "escape")
        await until(pilot, lambda: pilot.app.screen is overview(pilot))
        assert "bandwidth" not in shown(pilot, "head")
