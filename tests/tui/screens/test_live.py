"""The Live screen: keys pressed, screens read."""

import json
import re
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from probes.simulation.host import SimulatedHost
from tests.support.action_screens import is_on, on, seen
from tests.support.pilot import SteppedClock, examined, readings, shown, stepped_app, until
from tests.support.recordings import recorded
from tests.support.training_samples import install, training
from tui.app import GdrtopApp
from tui.runtime.replay_source import ReplaySource
from tui.screens.doctor.screen import DoctorScreen
from tui.screens.key_footer import KeyFooter
from tui.screens.live.screen import LiveScreen
from tui.screens.live.state import LiveState
from widgets.base.lines_view import LinesView

SIZES = [(80, 24), (120, 40), (200, 60)]


@pytest.fixture(autouse=True)
def training_job(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


def app_and_clock() -> tuple[GdrtopApp, SteppedClock]:
    clock = SteppedClock()
    return stepped_app(SimulatedHost("hgx-h100", clock=clock)), clock


async def opened(pilot: Pilot[None], clock: SteppedClock, count: int = 12) -> None:
    """Show Live after so many readings and a check."""
    await examined(pilot, clock)
    await readings(pilot, clock, count - 2)
    await pilot.press("t")
    await on(pilot, LiveScreen)
    await until(pilot, lambda: "mlx5_0" in seen(pilot, "nics"))


async def one_more(pilot: Pilot[None], clock: SteppedClock) -> None:
    """Take one more reading below the Live screen."""
    await readings(pilot, clock, 2)


def focused(pilot: Pilot[None]) -> str:
    view = pilot.app.focused
    return view.id or "" if isinstance(view, LinesView) else ""


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_the_head_says_which_path_each_job_uses_and_what_is_odd(size: tuple[int, int]) -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=size) as pilot:
        await opened(pilot, clock)
        head = seen(pilot, "summary")
        assert re.search(r"train\.py.* · likely GDR.* 7 of 8 ranks, likely staged on rank 5 · ↑2\.83", head)
        words = " ".join(head.split())
        assert "▲ Rank 5 of train.py likely copies through" in words
        assert "fio (alice) · storage client" in head
        assert "SIMULATED" in seen(pilot, "head")


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_the_tables_show_what_matters_at_every_size(size: tuple[int, int]) -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=size) as pilot:
        await opened(pilot, clock)
        ranks, nics = seen(pilot, "ranks").splitlines(), seen(pilot, "nics").splitlines()
        assert {"GPU", "pid", "path", "Gb/s", "share"} <= set(ranks[0].split())
        staged = next(line for line in ranks if "4716" in line)
        assert re.search(r"GPU5 +5 +4716 .*likely staged +mlx5_5 8 QPs +160 +42%", staged)
        assert sum("likely GDR (DMA-BUF)" in line for line in ranks) == 7
        assert {"CNP/s", "retrans/s", "errors/s", "pause"} <= set(nics[0].split())
        assert "160  40%" in next(line for line in nics if line.startswith("mlx5_5"))
        assert "mlx5_8 went down" in seen(pilot, "changes")
        footer = str(pilot.app.screen.query_one(KeyFooter).render())
        assert len(footer) <= size[0]
        assert "( ) Event" in footer


@pytest.mark.slow
async def test_unknown_figures_are_question_marks_and_the_detail_says_why() -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, clock)
        fio = next(line for line in seen(pilot, "ranks").splitlines() if "fio" in line)
        assert fio.split()[1] == "?"
        assert fio.split()[-1] == "?"
        row = next(line for line in seen(pilot, "nics").splitlines() if line.startswith("mlx5_9"))
        assert row.count("?") == 4
        assert row.count("–") == 1  # nothing counts stalls
        await pilot.press("tab", "down", "G", "enter")
        await until(pilot, lambda: "mlx5_9 (ens9)" in seen(pilot, "details"))
        detail = " ".join(seen(pilot, "details").split())
        assert "PCIe stall ? (not there: the driver has no such counter)" in detail
        assert "This port has none of these counters." in detail


@pytest.mark.slow
async def test_enter_shows_the_evidence_of_a_process_and_escape_goes_back() -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot, clock)
        await pilot.press("enter")  # the worst rank is the first
        await until(pilot, lambda: "rank 5 · train.py" in seen(pilot, "details"))
        detail = " ".join(seen(pilot, "details").split())
        assert "likely staged" in detail
        assert "VmPin 24 MiB: 1.2 GiB are not host memory" in detail
        assert "42% of the median of its job" in detail
        assert "nvidia_peermem refcnt 0" in detail
        assert "Odd one out" in detail
        await pilot.press("escape")
        await until(pilot, lambda: not pilot.app.screen.query_one("#details").display)
        assert is_on(pilot, LiveScreen)
        await pilot.press("escape")
        await until(pilot, lambda: not is_on(pilot, LiveScreen))


@pytest.mark.slow
async def test_q_goes_back_from_a_process_to_the_ranks_and_then_to_the_overview() -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot, clock)
        await pilot.press("enter")
        await until(pilot, lambda: pilot.app.screen.query_one("#details").display)
        await pilot.press("q")
        await until(pilot, lambda: not pilot.app.screen.query_one("#details").display)
        assert is_on(pilot, LiveScreen)
        await pilot.press("q")
        await until(pilot, lambda: not is_on(pilot, LiveScreen))


@pytest.mark.slow
@pytest.mark.parametrize("size", [(120, 40), (200, 60), (250, 80)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_no_pane_of_a_quiet_job_is_half_empty(size: tuple[int, int]) -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=size) as pilot:
        await opened(pilot, clock)
        panes = [view for view in app.screen.query(LinesView) if view.display and view.id != "changes"]
        for view in panes:
            assert len(view.lines) >= view.content.height - 3, view.id
        assert ("job-traffic" in {view.id for view in panes}) == (size != (120, 40))


@pytest.mark.slow
async def test_stepping_back_shows_the_figures_of_that_moment_on_all_panes() -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, clock)
        await pilot.press("left_square_bracket", "left_square_bracket")
        await until(pilot, lambda: "2 s ago" in seen(pilot, "summary"))
        assert "End returns to now" in seen(pilot, "summary")
        for pane in ("ranks", "nics", "gpus"):
            assert "380" in seen(pilot, pane)
            assert "382" not in seen(pilot, pane)
        await one_more(pilot, clock)
        await until(pilot, lambda: "3 s ago" in seen(pilot, "summary"))
        assert "380" in seen(pilot, "nics")
        await pilot.press("end")
        await until(pilot, lambda: "383" in seen(pilot, "nics"))
        assert "ago" not in seen(pilot, "summary")


@pytest.mark.slow
async def test_the_last_samples_are_there_although_live_was_closed() -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, clock, 13)
        await pilot.press("less_than_sign")
        await until(pilot, lambda: "11 s ago" in seen(pilot, "summary"))
        assert "371" in seen(pilot, "nics")
        await pilot.press("right_curly_bracket")
        await until(pilot, lambda: "1 s ago" in seen(pilot, "summary"))
        await pilot.press("escape")
        await until(pilot, lambda: "ago" not in seen(pilot, "summary"))
        assert is_on(pilot, LiveScreen)


@pytest.mark.slow
async def test_jumping_between_events() -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, clock)
        await pilot.press("left_parenthesis")
        await until(pilot, lambda: "6 s ago" in seen(pilot, "summary"))
        assert focused(pilot) == "changes"
        await pilot.press("left_parenthesis")
        await until(pilot, lambda: "8 s ago" in seen(pilot, "summary"))
        assert "374" in seen(pilot, "nics")
        await pilot.press("enter")
        await until(pilot, lambda: "mlx5_8 went down" in seen(pilot, "details"))
        assert "Check the cable and the switch port." in " ".join(seen(pilot, "details").split())
        assert "Figures at" in seen(pilot, "details")
        await pilot.press("escape", "right_parenthesis")
        await until(pilot, lambda: "6 s ago" in seen(pilot, "summary"))


@pytest.mark.slow
async def test_the_filter_lists_only_rows_of_the_focused_pane_that_contain_a_word() -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, clock)
        everything = seen(pilot, "changes")
        await pilot.press("slash", *"mlx5_5", "enter")
        await until(pilot, lambda: len(seen(pilot, "ranks").splitlines()) == 2)
        assert "4716" in seen(pilot, "ranks")
        assert seen(pilot, "changes") == everything
        await pilot.press("down", "enter")  # the only row that there is
        await until(pilot, lambda: "4716" in seen(pilot, "details"))
        await pilot.press("escape", "escape")
        await until(pilot, lambda: len(seen(pilot, "ranks").splitlines()) > 8)
        await pilot.press("shift+tab", "slash", *"down", "enter")
        await until(pilot, lambda: "rank 5" not in seen(pilot, "changes"))
        assert "mlx5_8 went down" in seen(pilot, "changes")
        await pilot.press("escape")
        await until(pilot, lambda: "rank 5" in seen(pilot, "changes"))
        assert not pilot.app.screen.query_one("#word", Input).display


@pytest.mark.slow
async def test_tab_reaches_every_pane_on_a_short_terminal() -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot, clock)
        seen_panes = [focused(pilot)]
        for _ in range(4):
            await pilot.press("tab")
            seen_panes.append(focused(pilot))
        assert seen_panes == ["ranks", "nics", "gpus", "changes", "ranks"]


@pytest.mark.slow
async def test_what_is_shown_is_written_as_text_and_json_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app, clock = app_and_clock()
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot, clock)
        await pilot.press("w")
        await until(pilot, lambda: len(list(tmp_path.iterdir())) == 2)
    text = next(tmp_path.glob("gdrtop-live-*.txt")).read_text(encoding="utf-8")
    assert "likely GDR (DMA-BUF) on 7 of 8 ranks" in text
    assert "mlx5_8 went down" in text
    events = next(tmp_path.glob("gdrtop-live-*.jsonl")).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["kind"] for line in events] == ["port-state", "path-changed"]


@pytest.mark.slow
async def test_live_opens_from_other_screens_and_the_palette_names_it() -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 3)
        await pilot.press("d")
        await on(pilot, DoctorScreen)
        await pilot.press("t")
        await on(pilot, LiveScreen)
        await pilot.press("ctrl+p", *"live")
        commands = pilot.app.screen.query("CommandList").first()
        await until(pilot, lambda: any("Live" in str(option.prompt) for option in commands.options))


@pytest.mark.slow
async def test_the_overview_shows_each_job_with_its_path_and_rates() -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=(120, 40)) as pilot:
        await examined(pilot, clock)
        await readings(pilot, clock, 10)
        jobs = shown(pilot, "jobs").splitlines()
        assert jobs[0] == "▲ train.py (alice, Slurm job 4711)"
        assert jobs[1:3] == ["  likely GDR on 7 of 8 ranks", "  likely staged on rank 5 · ↑2.83 ↓2.83 Tb/s"]
        assert any("host memory" in line for line in jobs)
        assert "Rank 5 of train.py" not in "".join(jobs)  # which the findings say


@pytest.mark.slow
async def test_a_recording_shows_live_and_its_keys_move_the_recording() -> None:
    clock = SteppedClock()
    host = recorded(SimulatedHost("hgx-h100", clock=clock), clock, 8)
    app = GdrtopApp(lambda: host, host.origin, None, ReplaySource(host))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "1/8" in shown(pilot, "head"))
        await pilot.press("t")
        await on(pilot, LiveScreen)
        await until(pilot, lambda: "371" in seen(pilot, "nics"))
        await pilot.press("greater_than_sign")
        await until(pilot, lambda: "mlx5_8 went down" in seen(pilot, "changes"))
        assert "8/8" in seen(pilot, "head")
        await pilot.press("left_parenthesis", "left_parenthesis")
        await until(pilot, lambda: "4/8" in seen(pilot, "head"))
        assert "mlx5_8 went down" in seen(pilot, "changes")


def test_a_pane_is_drawn_again_only_if_something_in_it_has_changed() -> None:
    state = LiveState()
    state.add(training(1, 1.0, 1001.0))
    state.add(training(2, 2.0, 1002.0))
    before = state.lines("nics", 100)
    assert state.lines("nics", 100) is before
    state.step(-1)
    past = state.lines("nics", 100)
    state.add(training(3, 3.0, 1003.0))
    assert state.lines("nics", 100) is past
    state.go_to_end(1)
    assert state.lines("nics", 100) is not past


@pytest.mark.slow
async def test_the_py_spy_command_of_a_rank_is_copied_by_a_key() -> None:
    app, clock = app_and_clock()
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, clock)
        await pilot.press("c")
        assert not app.clipboard
        await pilot.press("enter")
        await until(pilot, lambda: "py-spy dump" in seen(pilot, "details"))
        await pilot.press("c")
        assert re.fullmatch(r"py-spy dump --nonblocking --pid 47\d\d", app.clipboard)
