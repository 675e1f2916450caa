"""Drives the Setup screen: a node that can be set up by keys and rebooted, and what an admin sees of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from probes.simulation.commands.command_result import CommandResult
from probes.simulation.host import SimulatedHost
from tests.support.action_screens import ended, on, question, seen
from tests.support.bandwidth_screens import over, planned
from tests.support.pilot import SteppedClock, readings, until
from tui.app import GdrtopApp
from tui.bandwidth.results_store import MemoryResultsStore
from tui.bandwidth.session import BenchSession
from tui.bandwidth.simulated_processes import SimulatedProcessStarter
from tui.files.setup_log import SetupLog
from tui.screens.bandwidth_run.screen import BandwidthRunScreen
from tui.screens.bandwidth_setup import BandwidthSetupScreen
from tui.screens.confirm import ConfirmScreen
from tui.screens.setup import SetupScreen

SMALL = (80, 24)


class QuickNode(SimulatedHost):
    """A simulated node on which no command takes any time, and which notes what ran."""

    def __init__(self, name: str, clock: SteppedClock) -> None:
        super().__init__(name, clock=clock)
        self.ran: list[tuple[str, ...]] = []

    def perform(self, argv: Sequence[str], given: str = "") -> CommandResult:
        self.ran.append(tuple(argv))
        return replace(super().perform(argv, given), seconds=0.0)


@dataclass
class Site:
    """A node with what gdrtop keeps on its disk: choices and results, which outlive a reboot."""

    host: QuickNode
    clock: SteppedClock
    log: SetupLog = field(default_factory=SetupLog)
    results: MemoryResultsStore = field(default_factory=MemoryResultsStore)

    @asynccontextmanager
    async def opened(
        self, size: tuple[int, int] = SMALL, read_only: bool = False
    ) -> AsyncIterator[Pilot[None]]:
        """Open the dashboard on the node, and its Setup screen."""
        app = GdrtopApp(lambda: self.host, self.host.origin, interval=None, read_only=read_only)
        async with app.run_test(size=size) as pilot:
            await to_setup(pilot, self.clock)
            yield pilot


def site_of(monkeypatch: pytest.MonkeyPatch, name: str, kind: type[QuickNode] = QuickNode) -> Site:
    """Return a simulated node whose tests step its clock themselves."""
    clock = SteppedClock()
    site = Site(kind(name, clock), clock)

    def wait(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr("tui.controllers.setup.open_setup_log", lambda is_live: site.log)
    monkeypatch.setattr("tui.bandwidth.results_store.open_results_store", lambda origin: site.results)
    starter = SimulatedProcessStarter(site.host, wait)
    monkeypatch.setattr(BenchSession, "_starter", lambda session: starter)
    monkeypatch.setattr("tui.controllers.bandwidth.DRAW_SECONDS", 0.01)
    return site


async def to_setup(pilot: Pilot[None], clock: SteppedClock) -> None:
    """Press s and wait for the steps."""
    await readings(pilot, clock, 3)
    await pilot.press("s")
    await on(pilot, SetupScreen)
    await until(pilot, lambda: "path" in summary(pilot) or "cannot work" in summary(pilot))
    await pilot.pause()


def summary(pilot: Pilot[None]) -> str:
    """Return the lines above the steps, as one."""
    return " ".join(seen(pilot, "summary").split())


def next_title(pilot: Pilot[None]) -> str:
    """Return the title of the step that the summary names as next; "" if it names none."""
    return summary(pilot).partition("next: ")[2].partition(" An old configuration")[0]


def row(pilot: Pilot[None], title: str) -> str:
    """Return a step's row in the list."""
    return next((line for line in seen(pilot, "guide").splitlines() if title in line), "")


async def select(pilot: Pilot[None], title: str) -> None:
    """Move the selection to a step, by keys."""
    await pilot.press("g")
    for _ in range(40):
        if title in seen(pilot, "step").partition("\n")[0]:
            return
        await pilot.press("down")
    raise AssertionError(f"no step {title!r}")


async def begin(pilot: Pilot[None]) -> None:
    """Press Enter on the selected step, and do what its screen asks for, until the Setup screen is back."""
    before = seen(pilot, "guide")
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, ConfirmScreen | BandwidthSetupScreen))
    if isinstance(pilot.app.screen, ConfirmScreen):
        await run_plan(pilot)
    else:
        await run_test(pilot)
    await on(pilot, SetupScreen)
    await until(pilot, lambda: seen(pilot, "guide") != before)
    await pilot.pause()


async def run_plan(pilot: Pilot[None]) -> None:
    """Confirm a plan, with the host name where it is asked for, and go back after the check."""
    asked = [str(view.placeholder) for view in pilot.app.screen.query(Input)]
    await pilot.press("enter")
    for text in asked:
        await pilot.press(*text.split()[4], "enter")  # "Type the host name hgx-h100 to run it"
    await ended(pilot)
    await pilot.press("escape")


async def run_test(pilot: Pilot[None]) -> None:
    """Run a bandwidth test, though the simulated job would be affected, and go back when it has ended."""
    await planned(pilot)
    await pilot.press("enter")
    running = BandwidthRunScreen
    await until(pilot, lambda: isinstance(pilot.app.screen, running) or "Run it anyway" in question(pilot))
    if not isinstance(pilot.app.screen, running):
        await pilot.press("y")
    await on(pilot, running)
    await over(pilot)
    await pilot.press("q", "q")  # to the settings, and back
