"""The fleet screen: the worst first, what changed, moving, sorting, filtering, opening a node."""

import pytest

from probes.fleet.compare import compare
from probes.host.protocol import Host
from probes.simulation.host import SimulatedHost
from tests.support.fleet_screens import FIRST, SECOND, FleetOnDemand, read, rows, text
from tests.support.pilot import until
from tui.fleet_app import NodeApp, OpenedNode
from tui.runtime.fleet_reader import FleetReading
from tui.runtime.open_host import NoSuchHost
from tui.screens.fleet import FleetScreen, FleetState
from tui.screens.help import HelpScreen
from tui.screens.key_footer import KeyFooter
from widgets.base.lines import plain


async def test_the_answer_is_first_and_the_worst_node_on_top() -> None:
    async with FleetOnDemand(FIRST).app().run_test(size=(120, 40)) as pilot:
        await read(pilot)
        assert "5 nodes: 4 READY, 1 DEGRADED" in text(pilot, "head")
        assert "changed" not in text(pilot, "head") + text(pilot, "nodes")
        assert rows(pilot)[0] == "gpu2"
        assert "An RDMA port has no link" in text(pilot, "nodes")
        assert "NVIDIA driver" in text(pilot, "nodes")  # gpu3 differs in it
        assert "port-down" in text(pilot, "node")


async def test_changes_of_the_newest_reading_are_marked_and_counted() -> None:
    async with FleetOnDemand(FIRST, SECOND).app().run_test(size=(120, 40)) as pilot:
        await read(pilot, 2)
        await until(pilot, lambda: "changed" in text(pilot, "head"))
        assert "4 nodes: 3 READY, 1 BROKEN · 1 does not answer · ◆ 3 changed" in text(pilot, "head")
        assert rows(pilot)[:2] == ["gpu1", "gpu4"]
        table = text(pilot, "nodes")
        assert "◆ was READY" in table
        assert "◆ was DEGRADED" in table
        assert "no answer since" in table
        assert "connection timed out" in table
        await pilot.press("down")
        assert "● READY" in text(pilot, "node")  # the last verdict of gpu4


def test_the_columns_fit_what_was_added_after_the_last_drawing() -> None:
    state = FleetState(lambda: 1_790_000_120.0)
    state.add(FleetReading(compare(*FIRST), 1_790_000_060.0))
    state.add_found(SECOND[0][:1])
    assert [plain(row) for row in state.list_lines(120)]
    state.add(FleetReading(compare(*SECOND), 1_790_000_120.0))
    head, *drawn = [plain(row) for row in state.list_lines(120)]
    (silent,) = [row for row in drawn if row.startswith("gpu4")]
    assert silent.index("no answer since") == head.index("finding")
    assert "connection timed out" in silent


async def test_nodes_are_shown_as_they_answer_while_another_one_hangs() -> None:
    fleet = FleetOnDemand(FIRST, SECOND, names=("gpu1", "gpu2", "gpu3", "gpu4", "gpu5"))
    fleet.hang.clear()
    async with fleet.app().run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "4 of 5 nodes" in text(pilot, "summary"))
        await until(pilot, lambda: "An RDMA port has no link" in text(pilot, "nodes"))
        assert sorted(rows(pilot)) == ["gpu1", "gpu2", "gpu3", "gpu4", "gpu5"]
        (waiting,) = [row for row in text(pilot, "nodes").splitlines() if "no answer" in row]
        assert waiting.startswith("gpu5")
        assert "no answer yet" in waiting
        fleet.hang.set()
        await until(pilot, lambda: "5 nodes: 4 READY, 1 DEGRADED" in text(pilot, "head"))
        assert "no answer" not in text(pilot, "nodes")
        fleet.hang.clear()
        await pilot.press("r")
        await until(pilot, lambda: "◆ was READY" in text(pilot, "nodes"))  # before the reading has ended
        fleet.hang.set()
        await until(pilot, lambda: "◆ 3 changed" in text(pilot, "head"))
        assert "◆ was READY" in text(pilot, "nodes")


async def test_a_reading_that_fails_leaves_the_table_as_it_was() -> None:
    fleet = FleetOnDemand(FIRST, OSError("no processes left"))
    async with fleet.app().run_test(size=(80, 24)) as pilot:
        await read(pilot, 2)
        await until(pilot, lambda: "failed" in text(pilot, "summary"))
        assert "no processes left" in text(pilot, "summary")
        assert len(rows(pilot)) == 5


@pytest.mark.slow
async def test_keys_and_clicks_move_sort_and_filter() -> None:
    async with FleetOnDemand(FIRST).app().run_test(size=(80, 24)) as pilot:
        await read(pilot)
        state = pilot.app.screen._state  # type: ignore[attr-defined]
        for key, row in (("G", -1), ("g", 0), ("end", -1), ("home", 0), ("pagedown", -1), ("pageup", 0)):
            await pilot.press(key)
            assert state.selected == rows(pilot)[row]
        await pilot.press("o")
        assert rows(pilot) == ["gpu1", "gpu2", "gpu3", "gpu4", "gpu5"]
        assert "by name" in str(pilot.app.screen.query_one("#nodes").border_title)
        await pilot.click("#nodes", offset=(3, 4))
        await pilot.pause()
        assert state.selected == "gpu3"
        await pilot.press("slash", *"no link", "enter")
        assert rows(pilot) == ["gpu2"]
        await pilot.press("escape")
        assert len(rows(pilot)) == 5
        await pilot.press("escape")
        assert pilot.app.is_running
        assert isinstance(pilot.app.screen, FleetScreen)


@pytest.mark.slow
async def test_enter_opens_the_selected_node_and_the_next_app_shows_the_same_table() -> None:
    fleet = FleetOnDemand(FIRST)
    app = fleet.app()
    async with app.run_test(size=(80, 24)) as pilot:
        await read(pilot)
        await pilot.press("down", "enter")
        await until(pilot, lambda: not app.is_running)
    assert isinstance(app.return_value, OpenedNode)
    assert [app.return_value.name] == fleet.opened == [fleet.state.selected]
    async with fleet.app().run_test(size=(80, 24)) as pilot:  # nothing is read: there is no second reading
        await pilot.pause()
        assert len(rows(pilot)) == 5
        assert fleet.state.selected == fleet.opened[0]


async def test_a_node_that_cannot_be_opened_is_named_and_the_table_stays() -> None:
    def refuse(name: str) -> Host:
        raise NoSuchHost(f"cannot read {name}: connection refused")

    async with FleetOnDemand(FIRST).app(refuse).run_test(size=(80, 24)) as pilot:
        await read(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: len(pilot.app._notifications) == 1)
        (notice,) = pilot.app._notifications
        assert notice.message == "cannot read gpu2: connection refused"
        assert "Opening" not in text(pilot, "summary")


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_q_and_ctrl_c_end_the_fleet(key: str) -> None:
    app = FleetOnDemand(FIRST).app()
    async with app.run_test(size=(80, 24)) as pilot:
        await read(pilot)
        await pilot.press(key)
        await until(pilot, lambda: not app.is_running)
    assert app.return_value is None


@pytest.mark.parametrize(("key", "goes_back"), [("q", True), ("F", True), ("ctrl+c", False)])
async def test_q_and_f_go_back_from_a_node_and_ctrl_c_does_not(key: str, goes_back: bool) -> None:
    host = SimulatedHost("cloud-vm")
    app = NodeApp(lambda: host, host.origin, None)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        await until(pilot, lambda: not app.is_running)
    assert app.goes_back is goes_back


@pytest.mark.slow
async def test_help_explains_the_table_and_the_footer_is_not_cut() -> None:
    async with FleetOnDemand(FIRST).app().run_test(size=(80, 24)) as pilot:
        await read(pilot)
        footer = str(pilot.app.screen.query_one(KeyFooter).render())
        assert footer.startswith(" Enter Open ")
        assert len(footer) <= 80
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(pilot.app.screen, HelpScreen))
        assert text(pilot, "help").startswith("FLEET")
        await pilot.press("q")
        await until(pilot, lambda: isinstance(pilot.app.screen, FleetScreen))
