"""The dashboard as an admin uses it: keys pressed, screens read."""

from pathlib import Path

import pytest
from textual.pilot import Pilot

from probes.host import LocalHost
from probes.simulation import SimulatedHost, simulated_names
from probes.topology import Smi
from probes.unknown import Unknown
from tests.trees import MELLANOX, NVIDIA, add_function, add_rdma_device, write
from tests.tui.driving import SteppedClock, overview, readings, shown, stepped_app, until
from widgets.lines_view import LinesView

SIZES = [(80, 24), (120, 40), (200, 60)]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", simulated_names())
async def test_every_simulated_node_at_every_size(name: str, size: tuple[int, int]) -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost(name, clock=clock))
    async with app.run_test(size=size) as pilot:
        await readings(pilot, clock, 3)
        # On a small screen the verdict stands first, and the name before its reason.
        assert "SIMULATED" in shown(pilot, "verdict")
        assert name in shown(pilot, "verdict")
        topology = shown(pilot, "topology")
        assert "GPU0" in topology
        assert "mlx5_0" in topology
        assert topology.count("Gb/s") >= 6
        for view in pilot.app.screen.query(LinesView):
            assert all(len(text) <= size[0] for text in shown(pilot, view.id or "").splitlines())


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
        assert "mlx5_0 is the best NIC of" in shown(pilot, "path")
        await pilot.press("escape")
        assert "best NIC of" not in shown(pilot, "path")


async def test_space_stops_the_readings_and_resumes_them() -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 2)
        await pilot.press("space")
        assert "PAUSED" in shown(pilot, "verdict")
        assert app.paused
        await pilot.press("space")
        assert "PAUSED" not in shown(pilot, "verdict")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_each_panel_alone_and_back(size: tuple[int, int]) -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("dgx-a100", clock=clock))
    words = {
        "1": ("topology", "switch"),
        "2": ("matrix", "PXB•"),
        "3": ("modules", "used by"),
        "4": ("gpudirect", "driver 515.43"),
        "5": ("traffic", "mlx5_9/1"),
        "6": ("path", "GPU0 → mlx5_0"),
    }
    async with app.run_test(size=size) as pilot:
        await readings(pilot, clock, 2)
        for key, (panel, word) in words.items():
            await pilot.press(key)
            await until(pilot, lambda panel=panel, word=word: word in shown(pilot, panel))
            seen = [
                view.id for view in pilot.app.screen.query(LinesView) if view.display and view.id != "verdict"
            ]
            assert [one for one in seen if pilot.app.screen.query_one(f"#{one}").size.width] == [panel]
        await pilot.press("escape")
        await pilot.pause()
        assert pilot.app.screen.query_one("#topology").size.width


async def test_help_explains_and_closes() -> None:
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))
    async with app.run_test(size=(80, 24)) as pilot:
        await readings(pilot, clock, 1)
        await pilot.press("question_mark")
        view = pilot.app.screen.query_one("#help", LinesView)
        assert "OVERVIEW" in "".join(run.text for of in view.lines for run in of)
        await pilot.press("escape")
        assert pilot.app.screen is overview(pilot)


async def test_the_refcount_on_screen_follows_the_kernels(tmp_path: Path) -> None:
    for name, text in (("initstate", "live\n"), ("refcnt", "3\n")):
        write(tmp_path, f"/sys/module/nvidia_peermem/{name}", text)
    write(tmp_path, "/proc/modules", "nvidia_peermem 16384 3 - Live 0x0\n")
    clock = SteppedClock()
    app = stepped_app(LocalHost(str(tmp_path)))
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 1)
        assert "refcnt    3 memory regions" in shown(pilot, "gpudirect")
        write(tmp_path, "/sys/module/nvidia_peermem/refcnt", "12\n")
        await readings(pilot, clock, 2)
        assert "refcnt    12 memory regions" in shown(pilot, "gpudirect")


async def test_a_device_that_appears_is_shown_without_asking(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_sixteen_gpus_and_eighteen_nics_are_all_there(tmp_path: Path, size: tuple[int, int]) -> None:
    for number in range(16):
        bus = f"{number * 4 + 1:02x}"
        path = (f"pci0000:{bus}", f"0000:{bus}:01.0", f"0000:{number * 4 + 2:02x}:00.0")
        add_function(tmp_path, path, NVIDIA, 0x2330, 0x030200, numa_node=number // 8, driver="nvidia")
    for number in range(18):
        bus = f"{128 + number * 4:02x}"
        path = (f"pci0000:{bus}", f"0000:{bus}:01.0", f"0000:{129 + number * 4:02x}:00.0")
        add_function(tmp_path, path, MELLANOX, 0x1021, 0x020700, numa_node=number // 9)
        add_rdma_device(tmp_path, f"mlx5_{number}", path)
    clock = SteppedClock()
    app = stepped_app(LocalHost(str(tmp_path)))
    async with app.run_test(size=size) as pilot:
        await readings(pilot, clock, 2)
        text = shown(pilot, "topology")
        for name in (*(f"GPU{n}" for n in range(16)), *(f"mlx5_{n}" for n in range(18))):
            assert name in text
        await pilot.press("2")
        await until(pilot, lambda: shown(pilot, "matrix"))
        matrix = shown(pilot, "matrix").partition(" to NCCL")[0]  # what follows tells NCCL's words
        rows = "\n".join(matrix.splitlines()[:-1])
        assert sum(rows.count(word) for word in (Smi.NODE.value, Smi.SYS.value)) == 16 * 18


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_an_empty_node_says_so_calmly(tmp_path: Path, size: tuple[int, int]) -> None:
    clock = SteppedClock()
    app = stepped_app(LocalHost(str(tmp_path)))
    async with app.run_test(size=size) as pilot:
        await readings(pilot, clock, 1)
        assert "--demo" in shown(pilot, "topology")
        await pilot.press("down", "2", "3", "4", "5", "6", "escape")
        assert pilot.app.is_running


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
        assert "[red]host" in shown(pilot, "verdict")


async def test_a_probe_that_fails_spoils_only_its_own_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    from probes import numa

    def fail(host: object) -> Unknown:
        raise RuntimeError("made up")

    monkeypatch.setattr(numa, "probe", fail)
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 2)
        assert "GPU7" in shown(pilot, "topology")
        assert "Traceback" not in shown(pilot, "verdict")


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


def screen_text(pilot: Pilot[None]) -> list[str]:
    lines = pilot.app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip) for strip in lines]
