"""The order of rows in Live's tables: chosen with o and a letter or a click, and saved."""

import pytest
from textual.pilot import Pilot

from tests.support.action_screens import on, seen
from tests.support.pilot import until
from tests.support.settings_machine import Machine
from tests.support.training_samples import install
from tests.tui.screens.test_live import app_and_clock, opened
from tui import dashboard
from tui.screens.live.screen import LiveScreen
from tui.screens.live.tables import SortScreen
from tui.settings import save as save_module
from tui.settings.current import use
from tui.settings.load import load
from widgets.base.lines_view import LinesView


@pytest.fixture(autouse=True)
def training_job(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    monkeypatch.setattr(save_module, "why_not_as_root", lambda _: "")


def title(pilot: Pilot[None], pane: str) -> str:
    return str(pilot.app.screen.query_one(f"#{pane}", LinesView).border_title)


def column(pilot: Pilot[None], pane: str) -> list[str]:
    """The first word of each row of a pane."""
    return [line.split()[0] for line in seen(pilot, pane).splitlines()[1:] if line.strip()]


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
async def test_o_and_a_letter_sort_and_again_reverse(machine: Machine, size: tuple[int, int]) -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=size) as pilot:
        await opened(pilot, clock)
        assert title(pilot, "nics") == "NICs, problems first"
        await pilot.press("tab", "o")
        await on(pilot, SortScreen)
        view = pilot.app.screen.query_one(LinesView)
        assert view.border_title == "Sort the NICs, now problems first"
        assert view.virtual_size.height <= view.size.height  # all of it is seen
        await pilot.press("n")
        await on(pilot, LiveScreen)
        await until(pilot, lambda: title(pilot, "nics") == "NICs, by NIC")
        assert column(pilot, "nics")[:2] == ["mlx5_0", "mlx5_1"]
        await pilot.press("o", "n")
        await until(pilot, lambda: title(pilot, "nics") == "NICs, by NIC, reversed")
        assert column(pilot, "nics")[0] != "mlx5_0"
        await until(pilot, lambda: load({}).configured("live.sort_nics").value == "-NIC")
        await pilot.press("o", "o")
        await on(pilot, LiveScreen)
        await until(pilot, lambda: title(pilot, "nics") == "NICs, problems first")
        await until(pilot, lambda: load({}).configured("live.sort_nics").value == "")


@pytest.mark.slow
async def test_a_click_on_a_head_sorts_by_it(machine: Machine) -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, clock)
        heading = seen(pilot, "ranks").splitlines()[0]
        place = heading.index("share") + 2
        await pilot.click("#ranks", offset=(place + 1, 1))
        await until(pilot, lambda: title(pilot, "ranks") == "Ranks, by share")
        assert "4716" in seen(pilot, "ranks").splitlines()[1]  # rank 5 has 42%
        await pilot.click("#ranks", offset=(place + 1, 1))
        await until(pilot, lambda: title(pilot, "ranks") == "Ranks, by share, reversed")
        assert "4716" not in seen(pilot, "ranks").splitlines()[1]


@pytest.mark.slow
async def test_the_staged_rank_is_the_first_one_and_keys_follow_the_order(machine: Machine) -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot, clock)
        assert "staged" in seen(pilot, "ranks").splitlines()[1]
        await pilot.press("g", "enter")
        await until(pilot, lambda: "staged" in seen(pilot, "details"))


@pytest.mark.slow
async def test_a_configured_order_is_used_and_a_row_can_be_chosen_with_enter(machine: Machine) -> None:
    machine.user_file.write_text("[live]\nsort_gpus = 'use'\n")
    use(load({}))
    app, clock = app_and_clock()
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, clock)
        assert title(pilot, "gpus") == "GPUs, Gb/s, by use"
        await pilot.press("tab", "tab", "o")
        await on(pilot, SortScreen)
        await pilot.press("k", "enter")  # the column before use
        await until(pilot, lambda: title(pilot, "gpus") == "GPUs, Gb/s, by GPU")
        await pilot.press("o", "escape")
        await on(pilot, LiveScreen)
        assert title(pilot, "gpus") == "GPUs, Gb/s, by GPU"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sort_nics = '-rnr/s'", ":2: live.sort_nics has no column 'rnr/s'; did you mean RNR/s?"),
        ("sort_gpus = 'zzz'", ":2: live.sort_gpus has no column 'zzz'. The columns are GPU, use, "),
    ],
)
def test_a_wrong_order_is_an_error_with_the_nearest_name(machine: Machine, text: str, message: str) -> None:
    machine.user_file.write_text(f"[live]\n{text}\n")
    found = load({})
    use(found)
    assert message in (" ".join(found.errors) or dashboard.refusal())
