"""A paste on any screen opens what the text means."""

import pytest
from textual import events
from textual.pilot import Pilot

from probes.simulation.host import SimulatedHost
from tests.support.action_screens import on, seen
from tests.support.pilot import SteppedClock, readings, stepped_app, until
from tui.app import GdrtopApp
from tui.screens.doctor.screen import DoctorScreen
from tui.screens.overview.screen import OverviewScreen
from tui.screens.read import ReadScreen

BROKEN = "host:1:2 [0] misc/ibvwrap.cc:92 NCCL WARN Call to ibv_open_device failed\r\nsecond line\r"


def app_and_clock() -> tuple[GdrtopApp, SteppedClock]:
    clock = SteppedClock()
    return stepped_app(SimulatedHost("hgx-h100", clock=clock)), clock


async def pasted(pilot: Pilot[None], text: str = BROKEN) -> None:
    pilot.app.post_message(events.Paste(text))
    await pilot.pause()


@pytest.mark.parametrize("key", ["", "d"])
async def test_a_paste_opens_what_it_means(key: str) -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 2)
        if key:
            await pilot.press(key)
            await on(pilot, DoctorScreen)
        await pasted(pilot)
        await on(pilot, ReadScreen)
        await until(pilot, lambda: "cannot open the RDMA device" in seen(pilot, "reading"))
        assert "paste:1" in seen(pilot, "reading")
        await pilot.press("q")
        await on(pilot, DoctorScreen if key else OverviewScreen)


async def test_another_paste_takes_the_place_of_the_first() -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=(80, 24)) as pilot:
        await readings(pilot, clock, 2)
        await pasted(pilot)
        await on(pilot, ReadScreen)
        await pasted(pilot, "nothing that is known\nat all\n")
        await until(pilot, lambda: "knows no line" in seen(pilot, "reading"))
        await pilot.press("q")
        await on(pilot, OverviewScreen)


async def test_a_word_is_not_read() -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=(80, 24)) as pilot:
        await readings(pilot, clock, 2)
        await pasted(pilot, "mlx5_0")
        assert isinstance(pilot.app.screen, OverviewScreen)
