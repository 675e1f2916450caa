"""The bell rings at a new critical finding, and only if it is configured."""

from __future__ import annotations

import pytest

from probes.simulation.host import SimulatedHost
from tests.support.fleet_screens import FIRST, SECOND, FleetOnDemand, read, rows
from tests.support.pilot import SteppedClock, readings, shown, until
from tests.support.tiers import usual
from tui.app import GdrtopApp
from tui.fleet_app import FleetApp
from tui.settings.current import use
from tui.settings.load import load

LOST_AFTER = 15  # seconds, of gpu-off-bus-live
NEVER = 3600.0  # seconds between readings that the test does not ask for


async def rung(monkeypatch: pytest.MonkeyPatch, name: str, seconds: int) -> int:
    """Watch a node; return how often the bell has rung."""
    bells: list[None] = []
    monkeypatch.setattr(GdrtopApp, "bell", lambda app: bells.append(None))
    clock = SteppedClock()
    host = SimulatedHost(name, clock=clock)
    async with GdrtopApp(lambda: host, host.origin, NEVER).run_test(size=(80, 24)) as pilot:
        await readings(pilot, clock, seconds)
        await until(pilot, lambda: "✗" in shown(pilot, "findings"))
    return len(bells)


@pytest.mark.slow
@pytest.mark.parametrize("is_configured", usual([True, False], [True]))
async def test_a_gpu_that_is_lost_rings_once(
    is_configured: bool, machine: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GDRTOP_TERMINAL_BELL", str(is_configured).lower())
    use(load())
    assert await rung(monkeypatch, "hgx-h100+gpu-off-bus-live", LOST_AFTER + 10) == is_configured


async def test_a_node_of_a_fleet_that_breaks_rings(machine: object, monkeypatch: pytest.MonkeyPatch) -> None:
    bells: list[None] = []
    monkeypatch.setattr(FleetApp, "bell", lambda app: bells.append(None))
    monkeypatch.setenv("GDRTOP_TERMINAL_BELL", "true")
    use(load())
    fleet = FleetOnDemand(FIRST, SECOND, SECOND)
    async with fleet.app().run_test(size=(80, 24)) as pilot:
        await read(pilot)
        assert not bells
        await read(pilot, 3)
        await until(pilot, lambda: rows(pilot)[0] == "gpu1")  # type: ignore[arg-type]
        assert len(bells) == 1


async def test_what_was_there_before_does_not_ring(machine: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDRTOP_TERMINAL_BELL", "true")
    use(load())
    assert await rung(monkeypatch, "hgx-h100+no-gdr-path", 10) == 0
