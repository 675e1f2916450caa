"""The recording in screenshots/: a broken node is diagnosed and fixed by keys, in 30 seconds."""

from __future__ import annotations

from pathlib import Path

from textual.pilot import Pilot

from tests.asciicast import Cast
from tests.tui.action_screens import QuickHost, ended, on
from tests.tui.pilot import SteppedClock, examined, stepped_app
from tui.screens.confirm.screen import ConfirmScreen
from tui.screens.doctor.screen import DoctorScreen
from tui.screens.live.screen import LiveScreen

NODE = "hgx-h100+nvidia-not-loaded"
SIZE = (100, 30)
SECONDS_TO_READ = 4


async def record_diagnosis(path: Path) -> None:
    """Write the recording; the same program writes the same file."""
    clock = SteppedClock()
    cast = Cast(f"gdrtop --demo {NODE}")
    async with stepped_app(QuickHost(NODE, clock=clock)).run_test(size=SIZE) as pilot:
        await examined(pilot, clock)
        cast.note(pilot)
        await _diagnose(cast, pilot, clock)
    cast.write(path)


async def _diagnose(cast: Cast, pilot: Pilot[None], clock: SteppedClock) -> None:
    await cast.watch(pilot, clock, SECONDS_TO_READ)
    await pilot.press("d")
    await on(pilot, DoctorScreen)
    await cast.watch(pilot, clock, SECONDS_TO_READ + 2)
    await pilot.press("f")
    await on(pilot, ConfirmScreen)
    await cast.watch(pilot, clock, SECONDS_TO_READ + 2)
    await pilot.press("enter")
    await ended(pilot)
    await cast.watch(pilot, clock, SECONDS_TO_READ)
    await pilot.press("1")
    await cast.watch(pilot, clock, SECONDS_TO_READ)
    await pilot.press("t")
    await on(pilot, LiveScreen)
    await cast.watch(pilot, clock, SECONDS_TO_READ)
