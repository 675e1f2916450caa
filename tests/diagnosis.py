"""The recording in screenshots/: a broken node is diagnosed and fixed by keys, in 30 seconds."""

from __future__ import annotations

from pathlib import Path

from tests.asciicast import Cast
from tests.support.action_screens import QuickHost, ended, on
from tests.support.pilot import SteppedClock, examined, stepped_app
from tui.screens.confirm import ConfirmScreen
from tui.screens.doctor.screen import DoctorScreen
from tui.screens.live.screen import LiveScreen

NAME = "hgx-h100"
NODE = f"{NAME}+acs-on"
SIZE = (100, 30)
_KEY_SECONDS = 0.15


async def record_diagnosis(path: Path) -> None:
    """Write the recording; the same program writes the same file."""
    clock = SteppedClock()
    cast = Cast(f"gdrtop --demo {NODE}")
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=SIZE) as pilot:
        await examined(pilot, clock)
        cast.note(pilot)
        await cast.watch(pilot, clock, 5)
        await pilot.press("t")
        await on(pilot, LiveScreen)
        await cast.watch(pilot, clock, 4)
        await pilot.press("d")
        await on(pilot, DoctorScreen)
        await cast.watch(pilot, clock, 5)
        await pilot.press("f")
        await on(pilot, ConfirmScreen)
        await cast.watch(pilot, clock, 5)
        # Running jobs would be affected, so the node's name has to be typed.
        for key in ("enter", *NAME):
            await pilot.press(key)
            await pilot.pause()
            cast.now += _KEY_SECONDS
            cast.note(pilot)
        await cast.watch(pilot, clock, 1)
        await pilot.press("enter")
        await ended(pilot)
        await cast.watch(pilot, clock, 5)
        await pilot.press("1")
        await cast.watch(pilot, clock, 4)
    cast.write(path)
