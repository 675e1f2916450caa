"""The console of a run: floods, colours, failures, passwords, and a driver that must not be held."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from probes.simulation.commands.command_result import CommandResult
from probes.simulation.host import SimulatedHost
from tests.support.action_screens import NODE, asked, ended, on, seen
from tests.support.pilot import SteppedClock, readings, stepped_app, until
from tui.actions.local_commands import ask_on_terminal, wait_for_password
from tui.runtime.live_source import LiveSource
from tui.screens.run import RunScreen
from widgets.base.lines import Tone
from widgets.base.lines_view import LinesView

LINES = 20_000


class PrintingHost(SimulatedHost):
    """Obeys nothing, and prints what it was told to."""

    def __init__(self, name: str, clock: SteppedClock, lines: Sequence[str], exit_status: int = 0) -> None:
        super().__init__(name, clock=clock)
        self._printed, self._exit_status = tuple(lines), exit_status

    def perform(self, argv: Sequence[str], given: str = "") -> CommandResult:
        return CommandResult(self._printed, self._exit_status, 0.0)


@pytest.mark.slow
async def test_a_flood_does_not_freeze_the_screen() -> None:
    clock = SteppedClock()
    host = PrintingHost(NODE, clock, [f"line {number}" for number in range(LINES)])
    async with stepped_app(host).run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 2)
        await asked(pilot, "load-modules")
        await pilot.press("enter")
        await on(pilot, RunScreen)
        longest, last = 0.0, time.monotonic()
        while not seen(pilot, "summary").endswith("✓ done"):
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        text = seen(pilot, "console")
        assert f"line {LINES - 1}\n" in text
        assert text.count("\n") > LINES
        assert longest < 5  # the loop turned all the while, on the slowest machine too


@pytest.mark.slow
async def test_colors_are_kept_and_long_lines_are_wrapped() -> None:
    clock = SteppedClock()
    host = PrintingHost(NODE, clock, ["\x1b[31mred\x1b[0m", "x" * 300, "evil\x1b]0;title\x07"], exit_status=1)
    async with stepped_app(host).run_test(size=(80, 24)) as pilot:
        await readings(pilot, clock, 2)
        await asked(pilot, "load-modules")
        await pilot.press("enter")
        await ended(pilot)
        lines = pilot.app.screen.query_one("#console", LinesView).lines
        assert any(run.text == "red" and run.tone is Tone.BAD for line in lines for run in line)
        assert sum(run.text.count("x") for line in lines for run in line if set(run.text) == {"x"}) == 300
        text = seen(pilot, "console")
        assert "\x1b" not in text
        assert "✗ failed, exit status 1" in text
        assert "not run" not in text


@pytest.mark.slow
async def test_the_sampler_rests_while_the_driver_is_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Noting(SimulatedHost):
        def perform(self, argv: Sequence[str], given: str = "") -> CommandResult:
            order.append(argv[0])
            return super().perform(argv, given)

    release = LiveSource.release
    monkeypatch.setattr(LiveSource, "release", lambda live: (order.append("release"), release(live)))
    monkeypatch.setattr("tui.actions.guards.unloads_driver", lambda plan: True)
    clock = SteppedClock()
    async with stepped_app(Noting(NODE, clock=clock)).run_test(size=(80, 24)) as pilot:
        await readings(pilot, clock, 2)
        await asked(pilot, "load-modules")
        await pilot.press("enter")
        await ended(pilot)
    assert order == ["release", "modprobe"]


@pytest.mark.slow
async def test_without_a_terminal_there_is_no_password() -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost(NODE, clock=clock))
    async with app.run_test() as pilot:
        await readings(pilot, clock, 1)
        waiting = asyncio.to_thread(
            wait_for_password, app.call_later, lambda: ask_on_terminal(app.suspend, "a title"), lambda: False
        )
        assert not await waiting


def test_quitting_ends_the_wait_for_a_password() -> None:
    looked: list[bool] = []

    def is_leaving() -> bool:
        looked.append(True)
        return len(looked) > 2

    assert not wait_for_password(lambda asked: None, lambda: True, is_leaving)
    assert wait_for_password(lambda asked: asked(), lambda: True, lambda: False)


@pytest.mark.slow
async def test_an_internal_error_ends_the_run_with_a_message() -> None:
    class Failing(SimulatedHost):
        def perform(self, argv: Sequence[str], given: str = "") -> CommandResult:
            raise ValueError("no such luck")

    clock = SteppedClock()
    async with stepped_app(Failing(NODE, clock=clock)).run_test(size=(80, 24)) as pilot:
        await readings(pilot, clock, 2)
        await asked(pilot, "load-modules")
        await pilot.press("enter")
        await on(pilot, RunScreen)
        await until(pilot, lambda: "internal error: ValueError" in seen(pilot, "console"))
