"""The line that says what has changed since the node last worked, in the doctor and on the overview."""

from pathlib import Path

import pytest
from textual.pilot import Pilot

from probes.base.origin import Origin, Source
from probes.simulation.host import SimulatedHost
from tests.support.action_screens import seen
from tests.support.last_ok_node import GOOD, worked
from tests.support.pilot import SteppedClock, examined, shown, stepped_app

BAD = "hgx-h100+acs-on"
CHANGED = "Since it last worked, 3 h ago: ACS redirect off → on 16 of 16 switch ports"


def node(name: str) -> tuple[SimulatedHost, SteppedClock]:
    clock = SteppedClock()
    host = SimulatedHost(name, clock=clock)
    host.origin = Origin(Source.LIVE)
    return host, clock


async def in_doctor(pilot: Pilot[None], clock: SteppedClock) -> str:
    await examined(pilot, clock)
    await pilot.press("d")
    await pilot.pause()
    return seen(pilot, "summary")


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_doctor_and_overview_show_it_in_one_line(size: tuple[int, int], saved: Path) -> None:
    worked(saved)
    host, clock = node(BAD)
    async with stepped_app(host).run_test(size=size) as pilot:
        summary = (await in_doctor(pilot, clock)).splitlines()
        assert "DEGRADED" in shown(pilot, "head")
        assert summary[-1] == CHANGED
        assert len(summary) <= 4
        assert shown(pilot, "findings").splitlines()[-1].startswith("Since it last worked, 3 h ago: ACS")


async def test_it_pushes_no_finding_out(saved: Path) -> None:
    worked(saved)
    host, clock = node("hgx-h100+acs-on,port-down,nic-firmware-mismatch,memlock-login")
    async with stepped_app(host).run_test(size=(80, 24)) as pilot:
        await examined(pilot, clock)
        assert "Since it last worked" not in shown(pilot, "findings")


@pytest.mark.slow
async def test_the_dashboard_saves_a_node_that_works(saved: Path) -> None:
    host, clock = node(GOOD)
    async with stepped_app(host).run_test(size=(80, 24)) as pilot:
        assert "Since it last worked" not in await in_doctor(pilot, clock)
    assert [file.name for file in saved.iterdir()] == ["hgx-h100.json"]
