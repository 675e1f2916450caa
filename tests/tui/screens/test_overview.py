"""The dashboard as an admin uses it: keys pressed, screens read."""

import re
import threading
import time
from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from probes.base.origin import Origin, Source
from probes.base.unknown import Unknown
from probes.host.machine.local import LocalHost
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.description import simulated_names
from probes.topology.hops import Smi
from tests.support.action_screens import seen
from tests.support.opened_screens import many_devices
from tests.support.pilot import SteppedClock, examined, overview, readings, settled, shown, stepped_app, until
from tests.support.tiers import usual
from tests.support.trees import MELLANOX, NVIDIA, add_function, add_rdma_device, write
from tui.app import GdrtopApp
from tui.screens.doctor.screen import DoctorScreen
from widgets.base.lines import Tone
from widgets.base.lines_view import LinesView

SIZES = [(80, 24), (120, 40), (200, 60)]
# The size that the screens are designed for; the others in the slow tier.
USUAL_SIZE = [pytest.param(size, marks=() if size == (120, 40) else pytest.mark.slow) for size in SIZES]
NODES_AT_SIZES = [(name, size) for name in simulated_names() for size in SIZES]
USUAL_NODES_AT_SIZES = {("hgx-h100", (80, 24)), ("hgx-h100", (200, 60))} | {
    (name, (120, 40)) for name in simulated_names()
}


def first_nic(name: str) -> str:
    """The first NIC of a simulated node."""
    return SimulatedHost(name).tree.nics[0].name


@pytest.mark.slow
@pytest.mark.parametrize("shown_at", usual(NODES_AT_SIZES, USUAL_NODES_AT_SIZES), ids=str)
async def test_every_simulated_node_at_every_size(shown_at: tuple[str, tuple[int, int]]) -> None:
    name, size = shown_at
    clock = SteppedClock()
    host = SimulatedHost(name, clock=clock)
    ends = len(host.tree.gpus) + len(host.tree.nics)
    async with stepped_app(host).run_test(size=size) as pilot:
        await readings(pilot, clock, 3)
        # On a small screen the verdict stands first, and the name before its reason.
        assert "SIMULATED" in shown(pilot, "head")
        assert name in shown(pilot, "head")
        topology = shown(pilot, "topology")
        assert "GPU0" in topology
        assert first_nic(name) in topology
        assert topology.count("↑") >= min(6, ends)
        assert pilot.app.screen.query_one("#head").size.height <= 2
        for view in pilot.app.screen.query(LinesView):
            assert all(len(text) <= size[0] for text in shown(pilot, view.id or "").splitlines())


@pytest.mark.slow
async def test_selecting_a_gpu_shows_its_path_and_escape_gives_it_up() -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("pcie-l40s", clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 2)
        await pilot.press("down")
        assert "GPU0 → mlx5_0  PIX" in shown(pilot, "path")
        await pilot.press("right")
        assert "GPU0 → mlx5_1  NODE (NCCL PHB)" in shown(pilot, "path")
        await pilot.press("j", "j")
        assert "mlx5_0 is the best NIC for" in shown(pilot, "path")
        await pilot.press("escape")
        assert "best NIC of" not in shown(pilot, "path")


@pytest.mark.slow
async def test_space_stops_the_readings_and_resumes_them() -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 2)
        await pilot.press("space")
        assert "PAUSED" in shown(pilot, "head")
        assert app.readings.paused
        await pilot.press("space")
        assert "PAUSED" not in shown(pilot, "head")


@pytest.mark.slow
@pytest.mark.parametrize("size", USUAL_SIZE, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_each_panel_alone_and_back(size: tuple[int, int]) -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("dgx-a100", clock=clock))
    words = {
        "topology": "GPU7",
        "matrix": "PXB•",
        "modules": "used by",
        "gpudirect": "driver 515.43",
        "traffic": "mlx5_9",
        "path": "GPU0 → mlx5_0",
        "findings": "no critical findings",
        "jobs": "train.py",
        "rates": "mlx5_9",
    }
    async with app.run_test(size=size) as pilot:
        await examined(pilot, clock)
        for panel, word in words.items():
            await alone(pilot, panel)
            await until(pilot, lambda panel=panel, word=word: word in shown(pilot, panel))
            assert panels_seen(pilot) == [panel]
            await pilot.press("escape")
        await pilot.pause()
        assert "topology" in panels_seen(pilot)


@pytest.mark.slow
async def test_z_shows_the_focused_panel_alone_and_enter_the_selected_gpu_in_detail() -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 2)
        await pilot.press("z")
        assert panels_seen(pilot) == ["topology"]
        await pilot.press("z", "down", "enter")
        assert panels_seen(pilot) == ["path"]
        assert "70 GiB of 80 GiB in use" in shown(pilot, "path")
        await pilot.press("escape")
        assert "matrix" in panels_seen(pilot)


@pytest.mark.slow
async def test_enter_on_a_finding_opens_the_doctor_at_it() -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100+acs-on,port-down", clock=clock))
    async with app.run_test(size=(80, 24)) as pilot:
        await examined(pilot, clock)
        pilot.app.screen.query_one("#findings").focus()
        await pilot.press("G", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, DoctorScreen))
        await until(pilot, lambda: "mlx5_1" in seen(pilot, "details"))
        assert "ACS redirect" not in seen(pilot, "details")


@pytest.mark.slow
async def test_a_click_selects_a_gpu_and_a_finding_and_a_title_shows_its_panel_alone() -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100+port-down", clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await examined(pilot, clock)
        text = shown(pilot, "topology").splitlines()
        row = next(number for number, line in enumerate(text) if "GPU3" in line)
        await pilot.click("#topology", offset=(text[row].index("GPU3") + 2, row + 1))
        assert "Nearest NICs of GPU3" in shown(pilot, "path")
        await pilot.click("#findings", offset=(30, 1))
        finding = pilot.app.screen.query_one("#findings", LinesView).lines[0]
        assert any(run.tone is Tone.CURSOR for run in finding)
        await pilot.click("#matrix", offset=(5, 0))
        await pilot.pause()
        assert panels_seen(pilot) == ["matrix"]


@pytest.mark.slow
async def test_a_filter_leaves_the_gpus_and_nics_that_match() -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 2)
        await pilot.press("slash", *"storage")
        text = shown(pilot, "topology")
        assert "mlx5_4" in text
        assert "mlx5_9" in text
        assert "GPU0" not in text
        await pilot.press("enter", "escape")
        assert "GPU0" in shown(pilot, "topology")


@pytest.mark.slow
async def test_a_detour_is_drawn_in_topology_matrix_and_path() -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100+acs-on", clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await examined(pilot, clock)
        assert shown(pilot, "topology").count("via CPU") == 4  # one a switch
        assert "PIX•▲" in shown(pilot, "matrix")
        pilot.app.screen.query_one("#topology").focus()
        await pilot.press("down")
        assert "Detour" in shown(pilot, "path")
        assert "root port 15:01.0" in shown(pilot, "path")


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(simulated_names(), {"hgx-h100", "gb200"}))
async def test_at_the_design_size_nothing_of_topology_and_path_is_below_the_edge(name: str) -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost(name, clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await examined(pilot, clock)
        pilot.app.screen.query_one("#topology").focus()
        await pilot.press("down")
        await settled(pilot)
        for panel in ("topology", "path"):
            view = pilot.app.screen.query_one(f"#{panel}", LinesView)
            assert view.size.height >= len(view.lines)
        rows = shown(pilot, "path").splitlines()
        nic = next(row for row in rows if " → " in row).partition(" → ")[2].split()[0]
        assert any(row.startswith("DMA function" if name == "gb300" else nic) for row in rows)


@pytest.mark.slow
async def test_a_large_terminal_shows_the_rates_of_every_nic_against_its_line_rate() -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))
    async with app.run_test(size=(200, 60)) as pilot:
        await readings(pilot, clock, 10)
        rows = shown(pilot, "rates").splitlines()
        assert [row.split()[0] for row in rows[:-1]] == [f"mlx5_{number}" for number in range(10)]
        assert all("400G" in row or "100G" in row for row in rows[:-1])
        assert "line rate" in rows[-1]


@pytest.mark.slow
async def test_the_clock_is_local_time_with_its_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        clock = SteppedClock()
        async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=(120, 40)) as pilot:
            await readings(pilot, clock, 1)
            assert "IST" in shown(pilot, "head")
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.slow
async def test_a_message_covers_neither_the_strips_nor_the_panels() -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await readings(pilot, clock, 1)
        app.notify("Load the missing modules: nothing is missing.", markup=False)
        await until(pilot, lambda: pilot.app.screen.query("Toast"))
        await pilot.pause()
        toast = pilot.app.screen.query_one("Toast").region
        strips = pilot.app.screen.query_one("#strips").region
        assert toast.height
        assert toast.y >= strips.bottom


async def test_before_the_node_is_read_the_footer_has_its_keys() -> None:
    opened = threading.Event()

    def open_host() -> SimulatedHost:
        assert opened.wait(60)
        return SimulatedHost("hgx-h100")

    app = GdrtopApp(open_host, Origin(Source.SIMULATED, "hgx-h100"), interval=None)
    async with app.run_test(size=(80, 24)) as pilot:
        try:
            assert "Reading the node" in shown(pilot, "topology")
            assert "Reading the node" in shown(pilot, "head")
            await until(pilot, lambda: "Help" in "\n".join(screen_text(pilot)))
            assert "Quit" in screen_text(pilot)[-1]
        finally:
            opened.set()


@pytest.mark.slow
async def test_until_the_checks_are_through_the_overview_says_so() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100+acs-on", clock=clock)).run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 1)
        assert "checking…" in shown(pilot, "head")
        assert "checking…" in shown(pilot, "findings")
        await examined(pilot, clock)
        assert "checking…" not in shown(pilot, "head")
        assert "ACS redirect" in shown(pilot, "findings")


@pytest.mark.slow
async def test_a_scroll_bar_leaves_the_boxes_their_right_border() -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=(100, 60)) as pilot:
        await readings(pilot, clock, 2)
        topology = pilot.app.screen.query_one("#topology", LinesView)
        before = topology.room
        assert not topology.show_vertical_scrollbar
        await pilot.resize_terminal(100, 16)
        await until(pilot, lambda: topology.show_vertical_scrollbar)
        assert topology.room == before


@pytest.mark.slow
async def test_jobs_are_named_or_their_absence_is(tmp_path: Path) -> None:
    clock = SteppedClock()
    async with stepped_app(SimulatedHost("hgx-h100", clock=clock)).run_test(size=(120, 40)) as pilot:
        await examined(pilot, clock)
        jobs = shown(pilot, "jobs").splitlines()
        assert "train.py (alice, Slurm job 4711)" in jobs[0]
        assert "likely GDR (peermem) on all 8 ranks" in jobs[1]
    write(tmp_path, "/proc/1/comm", "systemd\n")
    write(tmp_path, "/proc/1/cmdline", "init\0")
    (tmp_path / "proc/1/fd").mkdir()
    async with stepped_app(LocalHost(str(tmp_path))).run_test(size=(120, 40)) as pilot:
        await examined(pilot, clock)
        assert shown(pilot, "jobs").startswith("Processes are unknown")  # a tree has no commands


@pytest.mark.slow
async def test_error_counters_of_a_selected_nic_have_values() -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100+symbol-errors-rising", clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await examined(pilot, clock)
        clock.now += 10
        await examined(pilot, clock, again=True)
        texts = []
        pilot.app.screen.query_one("#topology").focus()
        for _ in range(18):
            await pilot.press("down")
            texts.append(shown(pilot, "path"))
        counted = r"symbol_error [1-9][0-9]*  \+[1-9][0-9]* in [0-9]+ s"
        assert any(re.search(counted, text) for text in texts)


@pytest.mark.slow
async def test_help_explains_and_closes() -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))
    async with app.run_test(size=(80, 24)) as pilot:
        await readings(pilot, clock, 1)
        await pilot.press("question_mark")
        view = pilot.app.screen.query_one("#help", LinesView)
        await until(
            pilot, lambda: "OVERVIEW" in "".join(run.text for drawn_line in view.lines for run in drawn_line)
        )
        await pilot.press("escape")
        assert pilot.app.screen is overview(pilot)


@pytest.mark.slow
async def test_the_refcount_on_screen_follows_the_kernels(tmp_path: Path) -> None:
    for name, text in (("initstate", "live\n"), ("refcnt", "3\n")):
        write(tmp_path, f"/sys/module/nvidia_peermem/{name}", text)
    write(tmp_path, "/proc/modules", "nvidia_peermem 16384 3 - Live 0x0\n")
    clock = SteppedClock()
    app = stepped_app(LocalHost(str(tmp_path)))
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 1)
        assert "refcnt    3 " in shown(pilot, "gpudirect")
        write(tmp_path, "/sys/module/nvidia_peermem/refcnt", "12\n")
        await readings(pilot, clock, 2)
        assert "refcnt    12 " in shown(pilot, "gpudirect")


@pytest.mark.slow
async def test_a_device_that_appears_is_shown_without_asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.snapshot.node_reader.FINGERPRINT_SECONDS", 0.0)  # no test waits five seconds
    add_function(tmp_path, ("pci0000:00", "0000:00:01.0", "0000:01:00.0"), NVIDIA, 0x2330, 0x030200)
    clock = SteppedClock()
    app = stepped_app(LocalHost(str(tmp_path)))
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 1)
        assert "mlx5_0" not in shown(pilot, "topology")
        nic = ("pci0000:00", "0000:00:02.0", "0000:02:00.0")
        add_function(tmp_path, nic, MELLANOX, 0x1021, 0x020700)
        add_rdma_device(tmp_path, "mlx5_0", nic)
        await readings(pilot, clock, 2)
        assert "mlx5_0" in shown(pilot, "topology")


@pytest.mark.slow
@pytest.mark.parametrize("size", USUAL_SIZE, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_sixteen_gpus_and_eighteen_nics_are_all_there(tmp_path: Path, size: tuple[int, int]) -> None:
    many_devices(tmp_path)
    clock = SteppedClock()
    app = stepped_app(LocalHost(str(tmp_path)))
    async with app.run_test(size=size) as pilot:
        await readings(pilot, clock, 2)
        text = shown(pilot, "topology")
        for name in (*(f"GPU{n}" for n in range(16)), *(f"mlx5_{n}" for n in range(18))):
            assert name in text
        await alone(pilot, "matrix")
        await until(pilot, lambda: shown(pilot, "matrix"))
        rows = shown(pilot, "matrix").partition("• best NIC")[0]
        assert sum(rows.count(word) for word in (Smi.NODE.value, Smi.SYS.value)) == 16 * 18


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.slow
async def test_an_empty_node_says_so_calmly(tmp_path: Path, size: tuple[int, int]) -> None:
    clock = SteppedClock()
    app = stepped_app(LocalHost(str(tmp_path)))
    async with app.run_test(size=size) as pilot:
        await readings(pilot, clock, 1)
        assert "could not be read" in shown(pilot, "topology")
        await pilot.press("down", "enter", "z", "tab", "z", "escape", "slash", "escape", "G")
        assert pilot.app.is_running


@pytest.mark.slow
async def test_hostile_names_reach_no_cell(tmp_path: Path) -> None:
    nic = ("pci0000:00", "0000:00:01.0", "0000:01:00.0")
    add_function(tmp_path, nic, MELLANOX, 0x1021, 0x020700)
    add_rdma_device(tmp_path, "mlx5\x1b[2J[bold]", nic, state="4: \x1b[31mUP")
    write(tmp_path, "/proc/sys/kernel/hostname", "\x1b]0;owned\x07[red]host[/red]")
    clock = SteppedClock()
    app = stepped_app(LocalHost(str(tmp_path)))
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 2)
        for view in pilot.app.screen.query(LinesView):
            text = shown(pilot, view.id or "")
            assert all(character.isprintable() or character == "\n" for character in text)
        assert "[bold]" in shown(pilot, "topology")
        assert "[red]host" in shown(pilot, "head")


@pytest.mark.slow
async def test_a_probe_that_fails_spoils_only_its_own_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    from probes.facts.system import numa

    def fail(host: object) -> Unknown:
        raise RuntimeError("made up")

    monkeypatch.setattr(numa, "probe", fail)
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 2)
        assert "GPU7" in shown(pilot, "topology")
        assert "Traceback" not in shown(pilot, "head")


@pytest.mark.parametrize("screen", ["", "d", pytest.param("t", marks=pytest.mark.slow)])
async def test_a_word_that_comes_at_once_with_the_filter_s_key_is_its_word(screen: str) -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await examined(pilot, clock)
        await pilot.press(*screen)
        await settled(pilot)
        stack = list(app.screen_stack)
        for character in "/mlx5 q":  # as a slow link delivers what was typed
            app.post_message(events.Key({"/": "slash", " ": "space"}.get(character, character), character))
        await until(pilot, lambda: [word.value for word in app.screen.query(Input)] == ["mlx5 q"])
        assert app.screen_stack == stack


@pytest.mark.slow
async def test_only_changed_cells_are_repainted() -> None:
    """The screen after many partial repaints equals the screen painted whole."""
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 6)
        before = screen_text(pilot)
        pilot.app.screen.refresh(layout=True)
        for view in pilot.app.screen.query(LinesView):
            view.refresh()
        await pilot.pause()
        assert screen_text(pilot) == before


@pytest.mark.slow
async def test_panels_show_their_lines_again_after_another_one_was_alone() -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 3)
        before = screen_text(pilot)
        await pilot.press("z")
        await settled(pilot)
        await pilot.press("z")
        await settled(pilot)
        assert screen_text(pilot) == before


async def alone(pilot: Pilot[None], panel: str) -> None:
    await pilot.press("z")
    while panels_seen(pilot) != [panel]:
        await pilot.press("tab")
        await pilot.pause()


def panels_seen(pilot: Pilot[None]) -> list[str]:
    return [
        view.id or "" for view in overview(pilot).query(LinesView) if view.id != "head" and view.size.width
    ]


def screen_text(pilot: Pilot[None]) -> list[str]:
    lines = pilot.app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip) for strip in lines]


@pytest.mark.slow
async def test_the_refcnt_beside_a_marked_module_is_that_of_the_newest_reading() -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("dgx-a100+peermem-not-persistent", clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await examined(pilot, clock)
        seen = set()
        for _ in range(4):
            await readings(pilot, clock, 5)
            refcnt = re.search(r"refcnt +(\d+)", shown(pilot, "gpudirect"))
            marked = re.search(r"nvidia_peermem.* (\d+)$", shown(pilot, "modules"), re.M)
            assert refcnt is not None, shown(pilot, "gpudirect")
            assert marked is not None, shown(pilot, "modules")
            assert refcnt[1] == marked[1]
            seen.add(refcnt[1])
        assert len(seen) > 1
