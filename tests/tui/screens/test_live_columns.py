"""Columns of Live's tables, chosen with C and saved."""

import pytest
from textual.pilot import Pilot

from tests.support.action_screens import on, seen
from tests.support.pilot import until
from tests.support.settings_machine import Machine
from tests.support.training_samples import install
from tests.tui.screens.test_live import app_and_clock, opened
from tui import dashboard
from tui.screens.key_footer import KeyFooter
from tui.screens.live.screen import LiveScreen
from tui.screens.live.tables import ColumnsScreen
from tui.settings import save as save_module
from tui.settings.current import use
from tui.settings.load import load
from widgets.base.lines_view import LinesView


@pytest.fixture(autouse=True)
def training_job(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    monkeypatch.setattr(save_module, "why_not_as_root", lambda _: "")


def listed(pilot: Pilot[None]) -> list[str]:
    """The lines of the list of columns."""
    lines = pilot.app.screen.query_one(LinesView).lines
    return ["".join(run.text for run in line).rstrip() for line in lines]


def heading(pilot: Pilot[None], pane: str) -> list[str]:
    return seen(pilot, pane).splitlines()[0].split()


def footer(pilot: Pilot[None]) -> str:
    return str(pilot.app.screen.query_one(KeyFooter).render())


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
async def test_a_hidden_column_leaves_its_room_and_is_saved(machine: Machine, size: tuple[int, int]) -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=size) as pilot:
        await opened(pilot, clock)
        await pilot.press("tab", "C")
        await on(pilot, ColumnsScreen)
        view = pilot.app.screen.query_one(LinesView)
        assert view.border_title == "Columns of NICs"
        assert view.virtual_size.height <= view.size.height  # all of it is seen
        assert listed(pilot)[0] == "[x] NIC                the port (always shown)"
        await pilot.press("space", "down", "down", "space")
        assert listed(pilot)[1].startswith("[ ] state ")
        assert listed(pilot)[3].startswith("[ ] ↑Gb/s ")
        await pilot.press("k", "g", "space", "escape")
        await on(pilot, LiveScreen)
        await until(pilot, lambda: "↑Gb/s" not in heading(pilot, "nics"))
        assert heading(pilot, "nics")[0] == "NIC"
        assert "↓Gb/s" in heading(pilot, "nics")
        await until(pilot, lambda: machine.user_file.exists())
        messages = [note.message for note in pilot.app._notifications]
        assert "NIC identifies the row, so it is always shown." in messages
        await until(pilot, lambda: len(pilot.app._notifications) > len(messages) - 1)
    assert load({}).configured("live.hide_nics").value == "state, sent"


@pytest.mark.slow
async def test_configured_columns_are_hidden_and_can_be_shown_again(machine: Machine) -> None:
    machine.user_file.write_text("[live]\nhide_ranks = 'path, Gb/s'  # mine\n")
    use(load({}))
    app, clock = app_and_clock()
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, clock)
        assert not {"path", "Gb/s"} & set(heading(pilot, "ranks"))
        await pilot.press("C")
        await on(pilot, ColumnsScreen)
        row = next(row for row, line in enumerate(listed(pilot)) if line.startswith("[ ] path"))
        await pilot.click(LinesView, offset=(5, row + 1))
        assert listed(pilot)[row].startswith("[x] path")
        await pilot.press("C")
        await on(pilot, LiveScreen)
        await until(pilot, lambda: "path" in heading(pilot, "ranks"))
        await until(pilot, lambda: "path" not in machine.user_file.read_text())
    assert machine.user_file.read_text() == '[live]\nhide_ranks = "Gb/s"  # mine\n'


@pytest.mark.slow
async def test_what_changed_has_no_columns_to_choose(machine: Machine) -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, clock)
        await pilot.press("shift+tab")
        await pilot.press("C")
        await pilot.pause()
        assert isinstance(pilot.app.screen, LiveScreen)
        await pilot.press("tab")
        await pilot.press("C")
        await on(pilot, ColumnsScreen)
        await pilot.press("q")  # nothing was changed, so nothing is written
        await on(pilot, LiveScreen)
        await pilot.pause()
    assert not machine.user_file.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hide_nics = 'rnr/s'", ":2: live.hide_nics has no column 'rnr/s'; did you mean RNR/s?"),
        ("hide_ranks = 'pid'", ":2: live.hide_ranks cannot hide pid, which identifies the row"),
        ("hide_gpus = 'zzz'", ":2: live.hide_gpus has no column 'zzz'. The columns are use, PCIe sent, "),
        ("hide_gpus = '°C'", ":2: live.hide_gpus has no column '°C'"),
        ("hide_gpu = 'use'", ':2: unknown key "hide_gpu" in [live]; did you mean hide_gpus?'),
        ("hide_nics = 3", ":2: live.hide_nics must be names of columns with commas between them, not 3"),
    ],
)
def test_a_wrong_name_is_an_error_with_the_nearest_one(machine: Machine, text: str, message: str) -> None:
    machine.user_file.write_text(f"[live]\n{text}\n")
    found = load({})
    use(found)
    assert message in (" ".join(found.errors) or dashboard.refusal())


def test_a_variable_hides_columns_too() -> None:
    assert load({"GDRTOP_LIVE_HIDE_GPUS": "BAR1, W"}).configured("live.hide_gpus").value == "BAR1, W"
