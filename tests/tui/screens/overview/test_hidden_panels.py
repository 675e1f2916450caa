"""Panels of the overview that the user has hidden with C, or in the configuration."""

import pytest
from textual.pilot import Pilot

from probes.simulation.host import SimulatedHost
from tests.support.pilot import SteppedClock, examined, overview, settled, stepped_app, until
from tests.support.settings_machine import Machine
from tui.screens.overview.panel_screen import PANELS
from tui.screens.own_settings import PLACES, wrong_settings
from tui.settings import save as save_module
from tui.settings.current import use
from tui.settings.load import load
from widgets.base.lines_view import LinesView


@pytest.fixture(autouse=True)
def may_save_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_module, "why_not_as_root", lambda _: "")


def rows(pilot: Pilot[None], panel: str) -> int:
    view = overview(pilot).query_one(f"#{panel}", LinesView)
    return view.size.height if view.display else 0


@pytest.mark.slow
async def test_c_hides_a_panel_gives_its_rows_to_others_and_saves_it(machine: Machine) -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=(120, 40)) as pilot:
        await examined(pilot, clock)
        before = rows(pilot, "jobs")
        overview(pilot).query_one("#traffic").focus()
        await pilot.press("C")
        await settled(pilot)
        assert not rows(pilot, "traffic")
        assert rows(pilot, "jobs") > before
        await until(pilot, lambda: machine.user_file.exists())
        assert load({}).configured("overview.hide").value == "traffic"
        await pilot.press("z")
        while not rows(pilot, "traffic"):  # shown alone, it can be shown again
            await pilot.press("tab")
            await settled(pilot)
        await pilot.press("C")
        await settled(pilot)
        assert rows(pilot, "traffic")
        assert rows(pilot, "jobs") == before
        await until(pilot, lambda: load({}).configured("overview.hide").value == "")


@pytest.mark.slow
async def test_a_view_has_its_own_panels_and_can_be_the_first_one(machine: Machine) -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=(120, 40)) as pilot:
        await examined(pilot, clock)
        await pilot.press("2")
        await settled(pilot)
        assert {name for name in PANELS if rows(pilot, name)} == {"matrix", "path"}
        await pilot.press("C")
        await settled(pilot)
        assert {name for name in PANELS if rows(pilot, name)} == {"matrix", "path"}
        assert "always has the same panels" in [note.message for note in pilot.app._notifications][-1]
        await pilot.app.run_action("start_view")
        await until(pilot, lambda: load({}).configured("overview.view").value == "2")
    use(load({}))
    assert not list(wrong_settings(load({})))
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=(80, 24)) as pilot:
        await examined(pilot, clock)
        assert {name for name in PANELS if rows(pilot, name)} == {"matrix", "path"}
        await pilot.press("1")
        await settled(pilot)
        assert rows(pilot, "jobs")


@pytest.mark.slow
async def test_the_topology_cannot_be_hidden(machine: Machine) -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=(120, 40)) as pilot:
        await examined(pilot, clock)
        await pilot.press("C")
        await settled(pilot)
        assert rows(pilot, "topology")
        assert "always shown" in [note.message for note in pilot.app._notifications][-1]
    assert not machine.user_file.exists()


@pytest.mark.slow
async def test_configured_panels_are_hidden_from_the_start(machine: Machine) -> None:
    machine.user_file.write_text("[overview]\nhide = 'matrix, path, gpudirect, modules, traffic'\n")
    use(load({}))
    assert not list(wrong_settings(load({})))
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=(140, 40)) as pilot:
        await examined(pilot, clock)
        assert not rows(pilot, "matrix")
        assert rows(pilot, "rates")
        shown_beside = [name for name in PLACES["right"] if rows(pilot, name)]
        assert shown_beside == ["jobs"]  # which is always shown


def test_a_wrong_panel_is_an_error_with_the_nearest_one(machine: Machine) -> None:
    machine.user_file.write_text("[overview]\nhide = 'trafic'\n")
    (message,) = wrong_settings(load({}))
    assert ":2: overview.hide has no panel 'trafic'; did you mean traffic?" in message
