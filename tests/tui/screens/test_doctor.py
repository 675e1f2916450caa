"""The doctor's screen: keys pressed, screens read."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual import events
from textual.widgets import Input

from probes.checks.judgment import judge
from probes.checks.registry import CHECKS
from probes.host.machine.local import LocalHost
from probes.host.protocol import Host
from probes.live.job_examination import examine_with_jobs
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination
from tests.support.action_screens import seen
from tests.support.opened_screens import opened
from tests.support.pilot import SteppedClock, readings, shown, stepped_app, until
from tests.support.simulated_tree import write_tree
from tui.screens.actions.screen import ActionsScreen
from tui.screens.doctor.screen import DoctorScreen
from tui.screens.doctor.state import DoctorState
from tui.screens.key_footer import KeyFooter
from widgets.base.lines import plain
from widgets.base.lines_view import LinesView

BROKEN = "hgx-h100+no-gdr-path"
SIZES = [(80, 24), (120, 40)]


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_a_finding_shows_cause_evidence_and_fix(size: tuple[int, int]) -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost(BROKEN, clock=clock)).run_test(size=size) as pilot:
        await opened(pilot, clock)
        assert "BROKEN" in seen(pilot, "head")
        assert "SIMULATED" in seen(pilot, "head")
        assert "✗ " in seen(pilot, "findings")
        assert "peermem-not-loaded · critical" in seen(pilot, "details")
        assert "nvidia_peermem is not loaded" in seen(pilot, "details")
        assert "modprobe nvidia_peermem" in seen(pilot, "details")
        assert "needs root" in seen(pilot, "details")
        await pilot.press("e")
        assert "Without GPUDirect RDMA" in seen(pilot, "details")
        await pilot.press("escape")
        assert "Evidence" in seen(pilot, "details")
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, DoctorScreen))


@pytest.mark.slow
async def test_refresh_reads_also_what_no_event_shows(tmp_path: Path) -> None:
    write_tree(SimulatedHost("hgx-h100"), tmp_path)
    width = tmp_path / "sys/class/infiniband/mlx5_0/device/current_link_width"
    async with stepped_app(LocalHost(str(tmp_path))).run_test(size=(120, 40)) as pilot:
        await opened(pilot, SteppedClock())
        for lanes, is_found in ((8, True), (16, False)):
            width.write_text(f"{lanes}\n")
            await pilot.press("r")
            await until(
                pilot, lambda is_found=is_found: ("fewer lanes" in seen(pilot, "findings")) is is_found
            )
            await pilot.press("escape")
            await until(
                pilot, lambda is_found=is_found: shown(pilot, "findings").startswith("▲ mlx5_0") is is_found
            )
            await pilot.press("d")


@pytest.mark.slow
async def test_passed_checks_are_listed_on_request() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=(120, 40)) as pilot:
        await opened(pilot, clock)
        assert "no-gdr-path" not in seen(pilot, "findings")
        await pilot.press("a")
        listed = seen(pilot, "findings")
        # Others need watching, or root to ask optical modules.
        rest = {check.id for check in CHECKS if check.is_moving} | {"optic-power", "optic-fault"}
        assert all(check.id in listed for check in CHECKS if check.id not in rest)


@pytest.mark.slow
async def test_the_filter_lists_matching_entries() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost(BROKEN, clock=clock)).run_test(size=(120, 40)) as pilot:
        await opened(pilot, clock)
        await pilot.press("a", "slash", *"no-gdr-path", "enter")
        assert seen(pilot, "findings").count("\n") == 0
        assert "no-gdr-path" in seen(pilot, "findings")
        await pilot.press("slash", *"zzz", "enter")
        assert "No finding contains" in seen(pilot, "findings")
        await pilot.press("escape")
        assert "no-gdr-path" in seen(pilot, "findings")


@pytest.mark.slow
async def test_a_filter_that_was_pasted_is_shown_and_cleared_like_any_other() -> None:
    """Enter arrives before the list was filtered; Esc then clears the filter, and leaves no screen."""
    clock = SteppedClock()
    async with stepped_app(SimulatedHost(BROKEN, clock=clock)).run_test(size=(80, 24)) as pilot:
        await opened(pilot, clock)
        for key in ("slash", *"zzz", "enter"):
            pilot.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await until(pilot, lambda: "'zzz'" in seen(pilot, "findings"))
        await until(pilot, lambda: not pilot.app.screen.query_one("#word", Input).has_focus)
        assert pilot.app.screen.query_one("#word", Input).display
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, DoctorScreen)
        assert not pilot.app.screen.query_one("#word", Input).display


@pytest.mark.slow
async def test_a_failed_examination_is_reported() -> None:
    class Failing(SimulatedHost):
        def is_root(self) -> bool:
            raise RuntimeError("no such [bold]luck\x1b[31m")

    clock = SteppedClock()
    host: Host = Failing("hgx-h100", clock=clock)
    async with stepped_app(host).run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 2)
        await pilot.press("d")
        await until(pilot, lambda: "RuntimeError" in seen(pilot, "summary"))
        assert "\x1b" not in seen(pilot, "summary")


@pytest.mark.slow
async def test_the_overview_shows_the_marks() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost(BROKEN, clock=clock)).run_test(size=(120, 40)) as pilot:
        await opened(pilot, clock)
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, DoctorScreen))
        assert "BROKEN" in shown(pilot, "head")


@pytest.mark.slow
async def test_the_filter_is_still_shown_after_coming_back() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost(BROKEN, clock=clock)).run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 2)
        await pilot.press("x")
        await until(pilot, lambda: isinstance(pilot.app.screen, ActionsScreen))
        await pilot.press("d")
        await until(pilot, lambda: isinstance(pilot.app.screen, DoctorScreen))
        await until(pilot, lambda: " passed" in seen(pilot, "summary"))
        await pilot.press("slash", *"peermem", "enter")
        # By x back to the actions, and to the doctor again, without giving the word up.
        await pilot.press("x")
        await until(pilot, lambda: not isinstance(pilot.app.screen, DoctorScreen))
        await pilot.press("d")
        await until(pilot, lambda: isinstance(pilot.app.screen, DoctorScreen))
        await pilot.pause()
        word = pilot.app.screen.query_one("#word", Input)
        assert word.display
        assert word.value == "peermem"


@pytest.mark.slow
async def test_a_cut_reason_ends_in_an_ellipsis() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("cloud-vm", clock=clock)).run_test(size=(60, 24)) as pilot:
        await opened(pilot, clock)
        sentence, place = seen(pilot, "head").splitlines()
        assert "UNKNOWN" in place
        assert sentence.endswith("…")
        await pilot.press("e")
        assert "Unknown on this node (paths between GPUs" in " ".join(seen(pilot, "details").split())


@pytest.mark.slow
async def test_the_explanation_agrees_with_a_verdict_without_usable_gpus() -> None:
    clock = SteppedClock()
    name = "hgx-h100+fabric-manager-down"
    async with stepped_app(SimulatedHost(name, clock=clock)).run_test(size=(120, 40)) as pilot:
        await opened(pilot, clock)
        assert "0 of 8 GPUs" in seen(pilot, "head")
        await pilot.press("e")
        explanation = seen(pilot, "details")
        assert "No GPU on this node can use the direct path (" in explanation


@pytest.mark.slow
async def test_the_footer_of_an_input_shows_no_letter_keys() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost(BROKEN, clock=clock)).run_test(size=(120, 40)) as pilot:
        await opened(pilot, clock)
        await pilot.press("slash")
        await pilot.pause()
        footer = str(pilot.app.screen.query_one(KeyFooter).render())
        assert "Enter Done" in footer
        assert "Refresh" not in footer
        assert "Filter" not in footer


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.slow
@pytest.mark.usefixtures("new_york")
async def test_the_time_of_the_check_is_local_with_its_zone() -> None:
    clock = SteppedClock()
    host = SimulatedHost(BROKEN, clock=clock)
    async with stepped_app(host).run_test(size=(120, 40)) as pilot:
        await opened(pilot, clock)
        local = time.strftime("%H:%M:", time.localtime(host.wall_clock()))
        assert re.search(rf"checked {local}\d\d E[SD]T", seen(pilot, "summary"))


@pytest.mark.slow
async def test_a_finding_has_its_labelled_parts_in_order() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost(BROKEN, clock=clock)).run_test(size=(120, 40)) as pilot:
        await opened(pilot, clock)
        lines = seen(pilot, "details").splitlines()
        labels = [line.split()[0] for line in lines if line[:1].isupper()]
        assert [label for label in labels if label != "Impact"] == ["Cause", "Evidence", "Fix", "More"]
        assert lines[0].startswith("✗ ")
        assert lines[1].startswith("  peermem-not-loaded · critical")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.slow
async def test_checks_that_could_not_run_are_one_row_for_each_need(size: tuple[int, int]) -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100+pid-namespace-hides-users", clock=clock)).run_test(
        size=size
    ) as pilot:
        await opened(pilot, clock)
        rows = [line for line in seen(pilot, "findings").splitlines() if line.startswith("?")]
        assert any(row.split()[2] == "checks" and int(row.split()[1]) > 30 for row in rows)
        await pilot.press("slash", *"nccl-gdr-level-off", "enter")
        assert seen(pilot, "findings").startswith("? 1 check")
        assert "nccl-gdr-level-off" in seen(pilot, "details")


async def test_a_cut_text_says_so() -> None:
    clock = SteppedClock()
    host = SimulatedHost("pcie-l40s+roce-gid-wrong", clock=clock)
    async with stepped_app(host).run_test(size=(60, 24)) as pilot:
        await opened(pilot, clock)
        view = pilot.app.screen.query_one("#findings", LinesView)
        lines = seen(pilot, "findings").splitlines()
        titles = [*(check.texts().title for check in CHECKS), "of watching"]
        cut = [line for line in lines if not any(title in line for title in titles)]
        assert all("…" in line for line in cut)
        assert any("…" in line for line in lines)
        assert all(len(line) <= view.room for line in lines)


@pytest.mark.slow
def test_the_worst_finding_is_selected_until_a_person_selects_another() -> None:
    names = ("hgx-h100", "hgx-h100+acs-on", "hgx-h100+acs-on,xid-79-fell-off-bus")
    healthy, slow, worse = (examine_with_jobs(SimulatedHost(name)) for name in names)
    state = DoctorState()

    def title(examination: Examination) -> str:
        state.set_examination(examination, judge(examination))
        return plain(state.detail_lines(120)[0])

    assert "✗" not in title(healthy)
    assert title(slow) == "▲ ACS redirect is enabled between GPU and NIC"
    assert title(worse) == "✗ A GPU has fallen off the bus"
    assert title(slow) == "▲ ACS redirect is enabled between GPU and NIC"
    state.show("explanation")
    assert title(worse) == "ACS redirect is enabled between GPU and NIC"  # it is being read
    state.select(1)
    chosen = title(worse)
    assert title(worse) == chosen != "✗ A GPU has fallen off the bus"
