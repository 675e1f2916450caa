"""Helpers that drive the app in tests: a clock that only steps, readings only on request."""

from __future__ import annotations

import asyncio

from textual.pilot import Pilot

from probes.host.protocol import Host
from tui.app import GdrtopApp
from tui.screens.overview.screen import OverviewScreen
from tui.screens.request import Request
from widgets.base.lines_view import LinesView

LONGEST_WAIT_SECONDS = 60.0


class SteppedClock:
    """A clock that a test steps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def stepped_app(host: Host) -> GdrtopApp:
    """Return the app, which reads only on request."""
    return GdrtopApp(lambda: host, host.origin, interval=None)


async def until(pilot: Pilot[None], condition: object) -> None:
    """Wait for a condition, as long as a slow machine may need."""
    assert callable(condition)
    async with asyncio.timeout(LONGEST_WAIT_SECONDS) if hasattr(asyncio, "timeout") else _no_limit():
        while not condition():
            await pilot.pause(0.01)


class _no_limit:
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...


def overview(pilot: Pilot[None]) -> OverviewScreen:
    """Return the overview, also below other screens."""
    screen = pilot.app.screen_stack[0]
    assert isinstance(screen, OverviewScreen)
    return screen


async def readings(pilot: Pilot[None], clock: SteppedClock, count: int) -> None:
    """Take `count` readings, one second of the clock apart."""
    assert isinstance(pilot.app, GdrtopApp)
    screen = overview(pilot)
    await until(pilot, lambda: screen.readings >= 1)
    for _ in range(count - 1):
        before = screen.readings
        clock.now += 1.0
        pilot.app._reading_thread.ask()
        await until(pilot, lambda before=before: screen.readings > before)
    await settled(pilot)


async def examined(pilot: Pilot[None], clock: SteppedClock, again: bool = False) -> None:
    """Let the node be read twice and checked, and the overview show what was found."""
    if not again:
        await readings(pilot, clock, 2)
    state = overview(pilot).state
    assert state is not None
    before = state.checked.examination
    pilot.app.post_message(Request("check"))
    await until(pilot, lambda: state.checked.examination is not (before if again else None))
    await settled(pilot)


async def settled(pilot: Pilot[None]) -> None:
    """Wait until nothing is drawn any more: a new scroll bar redraws its pane."""
    before: object = None
    unchanged = 0
    while unchanged < 3:
        await pilot.pause(0.01)
        now = [(view.room, list(view.lines)) for view in overview(pilot).query(LinesView)]
        unchanged = unchanged + 1 if now == before else 0
        before = now


def shown(pilot: Pilot[None], panel: str) -> str:
    """Return the text of a panel, also what is scrolled out of view."""
    view = overview(pilot).query_one(f"#{panel}", LinesView)
    return "\n".join("".join(run.text for run in line).rstrip() for line in view.lines)
