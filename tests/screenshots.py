"""`make screenshots`: the screens of simulated nodes, so that pictures never lie."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from probes.base.origin import Origin, Source
from probes.simulation.host import SimulatedHost
from tests.diagnosis import record_diagnosis
from tests.support.action_screens import QuickHost, asked, ended, seen
from tests.support.bandwidth_screens import set_up, started
from tests.support.fleet_screens import Found
from tests.support.fleet_screens import read as read_fleet
from tests.support.opened_screens import opened
from tests.support.pilot import SteppedClock, examined, readings, stepped_app, until
from tests.support.setup_screens import to_setup
from tui.commands.fleet.check import judge_simulated
from tui.fleet_app import FleetApp
from tui.runtime.fleet_reader import FleetReader, Progress
from tui.runtime.open_host import open_simulated
from tui.screens.fleet import FleetState

DIRECTORY = Path(__file__).parents[1] / "screenshots"
_READ_AT = 1_790_000_000.0  # a fleet, in seconds since 1970
SIZES = ((80, 24), (120, 40), (200, 60))


async def take(name: str, columns: int, lines: int, keys: tuple[str, ...] = (), suffix: str = "") -> None:
    """Saves one picture."""
    clock = SteppedClock()
    app = stepped_app(SimulatedHost(name, clock=clock))
    async with app.run_test(size=(columns, lines)) as pilot:
        await examined(pilot, clock)
        await readings(pilot, clock, 40)
        await pilot.press(*keys)
        await pilot.pause()
        picture = app.export_screenshot(title=f"gdrtop --demo {name}")
    (DIRECTORY / f"overview{suffix}-{columns}x{lines}.svg").write_text(picture, encoding="utf-8")


async def take_doctor(name: str, columns: int, lines: int) -> None:
    """Saves a picture of the doctor's findings."""
    clock = SteppedClock()
    async with stepped_app(SimulatedHost(name, clock=clock)).run_test(size=(columns, lines)) as pilot:
        await opened(pilot, clock)
        picture = pilot.app.export_screenshot(title=f"gdrtop --demo {name}")
    (DIRECTORY / f"doctor-{columns}x{lines}.svg").write_text(picture, encoding="utf-8")


async def take_live(name: str, columns: int, lines: int, suffix: str = "") -> None:
    """Saves a picture of a job in Live."""
    clock = SteppedClock()
    async with stepped_app(SimulatedHost(name, clock=clock)).run_test(size=(columns, lines)) as pilot:
        await examined(pilot, clock)
        await readings(pilot, clock, 60)
        await pilot.press("t")
        await readings(pilot, clock, 2)
        live = pilot.app.export_screenshot(title=f"gdrtop --demo {name}")
    (DIRECTORY / f"live{suffix}-{columns}x{lines}.svg").write_text(live, encoding="utf-8")


async def take_setup(name: str, columns: int, lines: int) -> None:
    """Saves a picture of the steps of a node that is not set up yet."""
    clock = SteppedClock()
    async with stepped_app(SimulatedHost(name, clock=clock)).run_test(size=(columns, lines)) as pilot:
        await to_setup(pilot, clock)
        picture = pilot.app.export_screenshot(title=f"gdrtop --demo {name}")
    (DIRECTORY / f"setup-{columns}x{lines}.svg").write_text(picture, encoding="utf-8")


async def take_actions(name: str, columns: int, lines: int) -> None:
    """Saves a picture of a plan that somebody would feel, and of a run that has ended."""
    clock = SteppedClock()
    async with stepped_app(QuickHost(name, clock=clock)).run_test(size=(columns, lines)) as pilot:
        await readings(pilot, clock, 2)
        await asked(pilot, "restart-fabric-manager")
        plan = pilot.app.export_screenshot(title=f"gdrtop --demo {name}")
        await pilot.press("escape")
        await asked(pilot, "load-modules")
        await pilot.press("y")
        await ended(pilot)
        console = pilot.app.export_screenshot(title=f"gdrtop --demo {name}")
    for what, picture in (("plan", plan), ("console", console)):
        (DIRECTORY / f"{what}-{columns}x{lines}.svg").write_text(picture, encoding="utf-8")


async def take_bandwidth(name: str, columns: int, lines: int) -> None:
    """Saves a picture of a test's settings, and of three ways to memory compared."""
    clock = SteppedClock()
    async with stepped_app(SimulatedHost(name, clock=clock)).run_test(size=(columns, lines)) as pilot:
        await set_up(pilot, clock, "down", "down", "down", "down", "down", "left")
        setup = pilot.app.export_screenshot(title=f"gdrtop --demo {name}")
        await started(pilot)
        while "done" not in seen(pilot, "summary"):
            clock.now += 0.2
            await pilot.pause(0.05)
        await pilot.pause(0.5)  # the footer follows
        run = pilot.app.export_screenshot(title=f"gdrtop --demo {name}")
    for what, picture in (("setup", setup), ("compared", run)):
        (DIRECTORY / f"bandwidth-{what}-{columns}x{lines}.svg").write_text(picture, encoding="utf-8")


async def take_fleet(columns: int, lines: int) -> None:
    """Saves a picture of sixteen nodes, of which some have changed since the reading before."""
    names = [f"gpu{number:02}" for number in range(1, 17)]
    before = {names[2]: "mtu-mismatch", names[10]: "port-down"}
    after = {**before, names[6]: "nvidia-not-loaded", names[11]: "acs-on", names[10]: ""}
    readings_left = [before, after]

    def read_nodes(progress: Progress, _: object) -> Found:
        faults = readings_left.pop(0)
        nodes = {name: f"hgx-h100+{faults[name]}" if faults.get(name) else "hgx-h100" for name in names}
        kinds = {node: judge_simulated("", node, 0) for node in set(nodes.values())}
        return tuple(replace(kinds[node], name=name) for name, node in nodes.items()), ()

    origin = Origin(Source.SIMULATED, f"{len(names)} nodes")
    state, reader = FleetState(lambda: _READ_AT), FleetReader(read_nodes, lambda: _READ_AT)
    app = FleetApp(state, reader, open_simulated, origin, None)
    async with app.run_test(size=(columns, lines)) as pilot:
        await read_fleet(pilot, 2)
        await until(pilot, lambda: "changed" in seen(pilot, "head"))
        await pilot.press("g")
        await pilot.pause()
        picture = app.export_screenshot(title="gdrtop --demo fleet watch")
    (DIRECTORY / f"fleet-{columns}x{lines}.svg").write_text(picture, encoding="utf-8")


def main() -> None:
    """All pictures and the recording."""
    DIRECTORY.mkdir(exist_ok=True)
    for columns, lines in SIZES:
        asyncio.run(take("hgx-h100", columns, lines))
    asyncio.run(take("pcie-l40s", 120, 40, ("tab", "down"), "-selected"))
    asyncio.run(take("hgx-h100+no-gdr-path", 120, 40, (), "-broken"))
    asyncio.run(take_doctor("hgx-h100+acs-on,mtu-mismatch,nccl-gdr-level-ignored", 120, 40))
    asyncio.run(take_live("hgx-h100+rank-stopped", 120, 40))
    asyncio.run(take_live("hgx-h100+job-rank-staged", 120, 40, "-staged"))
    asyncio.run(take_setup("hgx-h100+iommu-translated,acs-on,memlock-login", 120, 40))
    asyncio.run(take_actions("hgx-h100+nvidia-not-loaded", 120, 40))
    asyncio.run(take_bandwidth("hgx-h100", 120, 40))
    asyncio.run(take_fleet(120, 40))
    asyncio.run(record_diagnosis(DIRECTORY / "diagnosis.cast"))


if __name__ == "__main__":
    main()
