"""What is wrong on the overview: findings, events, marked devices and jobs, and the keys that act."""

import re

import pytest
from textual.pilot import Pilot

from probes.simulation.host import SimulatedHost
from tests.support.action_screens import on, seen
from tests.support.pilot import SteppedClock, examined, overview, readings, settled, shown, stepped_app, until
from tui.screens.actions.screen import ActionsScreen
from tui.screens.confirm import ConfirmScreen
from tui.screens.doctor.screen import DoctorScreen
from tui.screens.key_footer import KeyFooter
from tui.screens.overview.panel_screen import Panel
from widgets.base.lines import Tone
from widgets.base.lines_view import LinesView

NEW = "pcie-l40s+new-node-debian"


def footer(pilot: Pilot[None]) -> str:
    return str(pilot.app.screen.query_one(KeyFooter).render())


def tones(pilot: Pilot[None], panel: str, word: str) -> set[Tone]:
    """The tones of the runs with a word."""
    lines = overview(pilot).query_one(f"#{panel}", LinesView).lines
    return {run.tone for line in lines for run in line if word in run.text}


def row(pilot: Pilot[None], panel: str, word: str) -> str:
    return next(text for text in shown(pilot, panel).splitlines() if word in text)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
async def test_findings_are_focused_enter_opens_the_first_and_f_fixes_it(size: tuple[int, int]) -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100+acs-on", clock=clock)).run_test(size=size) as pilot:
        await examined(pilot, clock)
        assert overview(pilot).focused is overview(pilot).query_one("#findings")
        assert tones(pilot, "findings", "ACS redirect is enabled") == {Tone.CURSOR}
        await until(pilot, lambda: "f Fix" in footer(pilot))
        await pilot.press("f")
        await on(pilot, ConfirmScreen)
        assert "ACS" in seen(pilot, "plan")
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is overview(pilot))
        await pilot.press("enter")
        await on(pilot, DoctorScreen)
        assert "ACS redirect" in seen(pilot, "details")


@pytest.mark.slow
async def test_without_findings_the_topology_is_focused_and_f_is_no_key() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=(120, 40)) as pilot:
        await examined(pilot, clock)
        assert overview(pilot).focused is overview(pilot).query_one("#topology")
        assert "Fix" not in footer(pilot)
        assert "Load" not in footer(pilot)


@pytest.mark.slow
@pytest.mark.parametrize(("node", "offers"), [("dgx-a100+peermem-not-loaded", True), (NEW, False)])
async def test_load_is_offered_where_modules_can_be_loaded(node: str, offers: bool) -> None:
    """On a node without drivers, modules are missing and cannot be loaded; the key still says why."""
    clock = SteppedClock()
    async with stepped_app(SimulatedHost(node, clock=clock)).run_test(size=(120, 40)) as pilot:
        await examined(pilot, clock)
        assert ("l Load" in footer(pilot)) is offers
        await pilot.press("l")
        await on(pilot, ConfirmScreen if offers else ActionsScreen)
        view, said = ("plan", "modprobe nvidia_peermem") if offers else ("selected", "cannot be loaded")
        await until(pilot, lambda: said in " ".join(seen(pilot, view).split()))


@pytest.mark.slow
async def test_findings_do_not_take_the_focus_from_a_selected_gpu() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100+acs-on", clock=clock)).run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 1)
        await pilot.press("down")
        await examined(pilot, clock)
        assert overview(pilot).focused is overview(pilot).query_one("#topology")


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
async def test_l_is_in_the_footer_when_a_module_is_missing(size: tuple[int, int]) -> None:
    clock = SteppedClock()
    host = SimulatedHost("dgx-a100+peermem-not-loaded", clock=clock)
    async with stepped_app(host).run_test(size=size) as pilot:
        await examined(pilot, clock)
        await until(pilot, lambda: "l Load" in footer(pilot))
        await pilot.press("l")
        await on(pilot, ConfirmScreen)
        assert "nvidia_peermem" in seen(pilot, "plan")


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
async def test_a_slow_nic_has_a_mark_and_a_word_in_its_row_its_box_and_its_job(size: tuple[int, int]) -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100+nic-slow", clock=clock)).run_test(size=size) as pilot:
        await examined(pilot, clock)
        await readings(pilot, clock, 40)
        slow = [text for text in shown(pilot, "topology").splitlines() if " slow" in text]
        assert len(slow) == 1, shown(pilot, "topology")
        assert "▲400G" in slow[0]
        assert "warning" in shown(pilot, "head")
        if size == (120, 40):
            assert shown(pilot, "topology").count(":00.0 ▲") == 1
            assert tones(pilot, "jobs", "train.py") >= {Tone.WARNING}
        else:
            assert Tone.WARNING in tones(pilot, "strips", "Tb/s")


@pytest.mark.slow
async def test_a_lost_gpu_is_seen_in_its_row_its_box_the_counts_and_the_job() -> None:
    clock = SteppedClock()
    host = SimulatedHost("hgx-h100+gpu-off-bus-live", clock=clock)
    async with stepped_app(host).run_test(size=(120, 40)) as pilot:
        await examined(pilot, clock)
        await readings(pilot, clock, 40)
        await examined(pilot, clock, again=True)
        assert "7 of 8 GPUs" in shown(pilot, "head")
        assert "1 critical" in shown(pilot, "head")
        await until(pilot, lambda: "fell off the bus" in shown(pilot, "topology"))
        lost = row(pilot, "topology", "fell off the bus")
        assert "GPU5✗" in lost
        assert shown(pilot, "topology").count(":00.0 ✗") == 1
        assert tones(pilot, "jobs", "train.py") & {Tone.BAD, Tone.WARNING}


@pytest.mark.slow
async def test_the_two_newest_events_stand_below_the_findings() -> None:
    clock = SteppedClock()
    host = SimulatedHost("hgx-h100+gpu-off-bus-live", clock=clock)
    async with stepped_app(host).run_test(size=(120, 40)) as pilot:
        await examined(pilot, clock)
        await readings(pilot, clock, 40)
        await examined(pilot, clock, again=True)
        *found, newest, before = shown(pilot, "findings").splitlines()
        assert found[0].startswith("✗ GPU5")
        times = [re.findall(r"^(\d\d:\d\d:\d\d) [✗▲·] ", text) for text in (newest, before)]
        assert all(times), (newest, before)
        assert times == sorted(times, reverse=True)


async def test_e_explains_the_selected_finding_in_plain_words() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100+acs-on,port-down", clock=clock)).run_test() as pilot:
        await examined(pilot, clock)
        await pilot.press("j", "e")
        await on(pilot, DoctorScreen)
        await until(pilot, lambda: "Without GPUDirect RDMA" in seen(pilot, "details"))
        assert "An RDMA port has no link" in seen(pilot, "details")


@pytest.mark.parametrize("name", ["hgx-h100", "hgx-h100+acs-on,port-down"])
async def test_at_100x30_no_panel_is_cut(name: str) -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost(name, clock=clock)).run_test(size=(100, 30)) as pilot:
        await examined(pilot, clock)
        shown_panels = [view for view in overview(pilot).query(Panel) if view.display]
        assert {view.id for view in shown_panels} >= {"topology", "findings" if "+" in name else "matrix"}
        for view in shown_panels:
            assert view.size.height >= len(view.lines), view.id
        if "+" in name:
            assert shown(pilot, "findings").count("Fix ") == 2


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
async def test_digits_reach_every_panel(size: tuple[int, int]) -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=size) as pilot:
        await examined(pilot, clock)
        views = {"2": ["matrix", "path"], "3": ["rates", "traffic"], "4": ["jobs", "gpudirect", "modules"]}
        for key, names in views.items():
            await pilot.press(key)
            await settled(pilot)
            panels = [view for view in overview(pilot).query(LinesView) if view.can_focus and view.size.width]
            assert [view.id for view in panels] == names
            assert overview(pilot).focused in panels
            heights = {view.region.y for view in panels} if size == (80, 24) else {0}
            assert len(heights) == (len(panels) if size == (80, 24) else 1)
            for view in panels:
                assert view.size.height > 0
                assert view.lines
        await pilot.press("down", "right")
        await pilot.press("2")
        await settled(pilot)
        assert "Nearest NICs of GPU0" in shown(pilot, "path")
        await pilot.press("escape")
        await settled(pilot)
        assert overview(pilot).query_one("#topology").size.height > 0
        await pilot.press("3", "1")
        await settled(pilot)
        assert overview(pilot).query_one("#topology").size.height > 0
