"""Drives the actions' screens in tests: nodes that obey at once, or only when told."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from textual.pilot import Pilot
from textual.screen import Screen

from probes.simulation.commands.command_result import CommandResult
from probes.simulation.host import SimulatedHost
from tests.tui.driving import SteppedClock, readings, until
from tui.app import GdrtopApp
from tui.screens.actions.screen import ActionsScreen
from tui.screens.confirm.screen import ConfirmScreen
from tui.screens.run.screen import RunScreen
from widgets.base.lines_view import LinesView

NODE = "hgx-h100+peermem-not-loaded"


class QuickHost(SimulatedHost):
    """A simulated node on which no command takes any time."""

    def perform(self, argv: Sequence[str], given: str = "") -> CommandResult:
        return replace(super().perform(argv, given), seconds=0.0)


class HeldHost(SimulatedHost):
    """A simulated node that obeys one command for each `let_one_go`, and notes what it obeyed."""

    def __init__(self, name: str, clock: SteppedClock) -> None:
        super().__init__(name, clock=clock)
        self._may_go = threading.Semaphore(0)
        self.obeyed: list[tuple[str, ...]] = []

    def let_one_go(self) -> None:
        self._may_go.release()

    def perform(self, argv: Sequence[str], given: str = "") -> CommandResult:
        self.obeyed.append(tuple(argv))
        assert self._may_go.acquire(timeout=60)
        return replace(super().perform(argv, given), seconds=0.0)


def seen(pilot: Pilot[None], view: str) -> str:
    """The text of a pane of the screen on top, seen or scrolled away."""
    lines = pilot.app.screen.query_one(f"#{view}", LinesView).lines
    return "\n".join("".join(run.text for run in of).rstrip() for of in lines)


def is_on(pilot: Pilot[None], kind: type[Screen[None]]) -> bool:
    return isinstance(pilot.app.screen, kind)


async def on(pilot: Pilot[None], kind: type[Screen[None]]) -> None:
    """Waits until a screen is on top and has been drawn."""
    await until(pilot, lambda: is_on(pilot, kind))
    await pilot.pause()


async def listed(pilot: Pilot[None], clock: SteppedClock) -> None:
    """The list of actions, with what is possible."""
    await readings(pilot, clock, 2)
    await pilot.press("x")
    await on(pilot, ActionsScreen)
    await until(pilot, lambda: "possible" in seen(pilot, "summary"))
    await pilot.pause()


async def asked(pilot: Pilot[None], name: str) -> None:
    """The plan of one action."""
    assert isinstance(pilot.app, GdrtopApp)
    pilot.app.action_act(name)
    await on(pilot, ConfirmScreen)


async def ended(pilot: Pilot[None]) -> None:
    """The console, after the node was looked at again."""
    await on(pilot, RunScreen)
    await until(pilot, lambda: "CHECKED AGAIN" in seen(pilot, "console"))
    await pilot.pause()
