"""Helpers for tests of the action screens: nodes whose commands take no time, or wait for the test."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from textual.pilot import Pilot
from textual.screen import Screen

from probes.simulation.commands.command_result import CommandResult
from probes.simulation.host import SimulatedHost
from tests.support.pilot import SteppedClock, readings, until
from tui.app import GdrtopApp
from tui.screens.actions.screen import ActionsScreen
from tui.screens.confirm import ConfirmScreen
from tui.screens.run import RunScreen
from widgets.base.lines_view import LinesView

NODE = "hgx-h100+peermem-not-loaded"


class QuickHost(SimulatedHost):
    """A simulated node on which no command takes any time."""

    def perform(self, argv: Sequence[str], given: str = "") -> CommandResult:
        return replace(super().perform(argv, given), seconds=0.0)


class HeldHost(SimulatedHost):
    """A simulated node that runs one command for each `release_one`, and notes what it ran."""

    def __init__(self, name: str, clock: SteppedClock) -> None:
        super().__init__(name, clock=clock)
        self._released = threading.Semaphore(0)
        self.ran: list[tuple[str, ...]] = []

    def release_one(self) -> None:
        self._released.release()

    def perform(self, argv: Sequence[str], given: str = "") -> CommandResult:
        self.ran.append(tuple(argv))
        assert self._released.acquire(timeout=60)
        return replace(super().perform(argv, given), seconds=0.0)


def seen(pilot: Pilot[None], view: str) -> str:
    """Return the text of a pane of the top screen, also what is scrolled out of view."""
    lines = pilot.app.screen.query_one(f"#{view}", LinesView).lines
    return "\n".join("".join(run.text for run in line).rstrip() for line in lines)


def question(pilot: Pilot[None]) -> str:
    """Return the question on the top screen as one line, however it is wrapped; "" if none is drawn."""
    has_pane = pilot.app.screen.query("#question")
    return " ".join(seen(pilot, "question").split()) if has_pane else ""


def is_on(pilot: Pilot[None], kind: type[Screen[None]]) -> bool:
    return isinstance(pilot.app.screen, kind)


async def on(pilot: Pilot[None], kind: type[Screen[None]]) -> None:
    """Wait until a screen is on top and drawn."""
    await until(pilot, lambda: is_on(pilot, kind))
    await pilot.pause()


async def listed(pilot: Pilot[None], clock: SteppedClock) -> None:
    """Open the list of actions and wait for it."""
    await readings(pilot, clock, 2)
    await pilot.press("x")
    await on(pilot, ActionsScreen)
    await until(pilot, lambda: any(word in seen(pilot, "summary") for word in ("possible", "It shows")))
    await pilot.pause()


async def asked(pilot: Pilot[None], name: str) -> None:
    """Open the plan of an action."""
    assert isinstance(pilot.app, GdrtopApp)
    pilot.app.action_act(name)
    await on(pilot, ConfirmScreen)


async def ended(pilot: Pilot[None]) -> None:
    """Wait for the console to show the check after the run."""
    await on(pilot, RunScreen)
    await until(pilot, lambda: "CHECKED AGAIN" in seen(pilot, "console"))
    await pilot.pause()
