"""The dashboard of a recording, and the dashboard's own recording: keys pressed, screens read."""

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from probes.base.origin import Source
from probes.facts.node import probe_node
from probes.recording.archive import read_archive
from probes.recording.replay_host import ReplayHost
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.description import simulated_names
from tests.support.pilot import SteppedClock, overview, readings, settled, shown, stepped_app, until
from tests.support.recordings import archive_of, moments_of, read, recorded
from tests.support.tiers import usual
from tui.app import GdrtopApp
from tui.files.new_file import chunks_of
from tui.runtime.reading_thread import Replayed, Sampled
from tui.runtime.replay_source import ReplaySource
from tui.screens.live.screen import LiveScreen
from tui.screens.live.state import LiveState
from tui.screens.overview.panel_screen import PANELS
from widgets.base.lines_view import LinesView

SIZES = [(80, 24), (120, 40)]


def replay_app(content: bytes) -> GdrtopApp:
    host = ReplayHost(read(content))
    return GdrtopApp(lambda: host, host.origin, None, ReplaySource(host))


def recording_of(name: str = "hgx-h100", count: int = 8) -> bytes:
    clock = SteppedClock()
    return archive_of(moments_of(SimulatedHost(name, clock=clock), clock, count), name, label=name)


async def at(pilot: Pilot[None], moment: int, total: int = 8) -> None:
    """Waits until a moment is shown. Its number is there before the first reading is."""
    await until(pilot, lambda: f"{moment}/{total}" in shown(pilot, "head"))
    await until(pilot, lambda: "Reading the node" not in shown(pilot, "topology"))
    await settled(pilot)


def lines_of(pilot: Pilot[None], pane: str) -> str:
    view = pilot.app.screen.query_one(f"#{pane}", LinesView)
    return "\n".join("".join(run.text for run in line) for line in view.lines)


def screen(pilot: Pilot[None]) -> dict[str, str]:
    """All panels, and the verdict with neither origin nor pace."""
    return {panel: shown(pilot, panel) for panel in (*PANELS, "strips")}


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", usual(simulated_names(), {"hgx-h100"}))
async def test_a_recording_shows_the_screens_of_the_live_node(name: str, size: tuple[int, int]) -> None:
    count = 3
    clock = SteppedClock()
    live: list[dict[str, str]] = []
    async with stepped_app(SimulatedHost(name, clock=clock)).run_test(size=size) as pilot:
        for number in range(count):
            await readings(pilot, clock, 1 if number == 0 else 2)
            live.append(screen(pilot))
    async with replay_app(recording_of(name, count)).run_test(size=size) as pilot:
        for number in range(count):
            await at(pilot, number + 1, count)
            with suppress(TimeoutError):  # panes are drawn one after another
                await until(pilot, lambda number=number: screen(pilot) == live[number])
            assert screen(pilot) == live[number]
            assert "RECORDED" in shown(pilot, "head")
            assert re.search(rf"SIMULATED {name}|SIMU.*…", shown(pilot, "head"))
            await pilot.press("right_square_bracket")


def test_live_says_what_the_check_of_the_moment_says() -> None:
    source = ReplaySource(ReplayHost(read(recording_of("hgx-h100+port-down", 3))))
    source.move(2)
    list(source.read(False))
    _, judgment = source.examine()
    (replayed,) = source.read(True)
    assert isinstance(replayed, Replayed)
    sampled = replayed.reports[-1]
    assert isinstance(sampled, Sampled)
    assert sampled.live is not None
    assert judgment.listed
    assert (sampled.live.verdict, sampled.live.findings) == (judgment.verdict, judgment.listed)
    state = LiveState()
    state.add(replace(sampled.live, findings=()))
    state.judge(judgment)
    assert state.sample == sampled.live
    assert state.timeline.at(sampled.taken_at) == sampled.live


@pytest.mark.slow
async def test_brackets_move_in_time_and_the_histories_follow() -> None:
    async with replay_app(recording_of()).run_test(size=(120, 40)) as pilot:
        await at(pilot, 1)
        forth = []
        for moment in range(1, 9):
            await at(pilot, moment)
            forth.append(screen(pilot))
            await pilot.press("right_square_bracket")
        back = []
        for moment in range(8, 0, -1):
            await at(pilot, moment)
            back.append(screen(pilot))
            await pilot.press("left_square_bracket")
        assert back[::-1] == forth
        assert len({panels["gpudirect"] for panels in forth}) > 4
        assert len({panels["traffic"] for panels in forth}) == 8


@pytest.mark.slow
async def test_keys_move_to_start_and_end_and_by_ten() -> None:
    async with replay_app(recording_of("cloud-vm", 25)).run_test(size=(120, 40)) as pilot:
        for key, moment in (
            ("greater_than_sign", 25),
            ("left_curly_bracket", 15),
            ("shift+left", 5),
            ("right_curly_bracket", 15),
            ("shift+right", 25),
            ("right_square_bracket", 25),
            ("less_than_sign", 1),
            ("left_square_bracket", 1),
        ):
            await pilot.press(key)
            await at(pilot, moment, 25)


@pytest.mark.slow
async def test_a_recording_plays_pauses_and_stops_at_the_end() -> None:
    app = replay_app(recording_of(count=3))
    async with app.run_test(size=(120, 40)) as pilot:
        await at(pilot, 1, 3)
        await pilot.press("space")
        assert "PAUSED" in shown(pilot, "head")
        app.readings.tick()
        await at(pilot, 1, 3)
        await pilot.press("space")
        assert "PAUSED" not in shown(pilot, "head")
        app.readings.tick()
        await at(pilot, 2, 3)
        app.readings.tick()
        await at(pilot, 3, 3)
        assert "END" in shown(pilot, "head")
        app.readings.tick()
        await at(pilot, 3, 3)
        await pilot.press("space")
        await at(pilot, 1, 3)
        assert "END" not in shown(pilot, "head")
        assert not app.readings.paused


@pytest.mark.slow
async def test_arrows_select_and_change_the_partner() -> None:
    async with replay_app(recording_of("pcie-l40s")).run_test(size=(120, 40)) as pilot:
        await at(pilot, 1)
        await pilot.press("down")
        assert "GPU0 → mlx5_0  PIX" in shown(pilot, "path")
        await pilot.press("right")
        assert "GPU0 → mlx5_1  NODE (NCCL PHB)" in shown(pilot, "path")
        await pilot.press("right_square_bracket")
        await at(pilot, 2)
        assert "GPU0 → mlx5_1  NODE (NCCL PHB)" in shown(pilot, "path")
        await pilot.press("left")
        assert "GPU0 → mlx5_0  PIX" in shown(pilot, "path")


@pytest.mark.slow
async def test_a_damaged_recording_says_so() -> None:
    content = recording_of()
    async with replay_app(content[:-2500]).run_test(size=(120, 40), notifications=True) as pilot:
        await until(pilot, lambda: overview(pilot).readings >= 1)
        told = [notification.message for notification in pilot.app._notifications]
        assert any("damaged: only the first" in message for message in told)


@pytest.mark.slow
async def test_a_recording_cannot_be_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with replay_app(recording_of()).run_test(size=(120, 40)) as pilot:
        await at(pilot, 1)
        await pilot.press("R", "r")
        await at(pilot, 1)
    assert not list(tmp_path.iterdir())


# The dashboard's own recording


@pytest.mark.slow
async def test_a_key_records_the_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100", clock=clock))
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await readings(pilot, clock, 2)
        await pilot.press("R")
        told = [notification.message for notification in pilot.app._notifications]
        assert "Recording this node. R stops it." in told
        await until(pilot, lambda: "REC 1 " in shown(pilot, "head"))
        await readings(pilot, clock, 4)
        await until(pilot, lambda: "REC 4 " in shown(pilot, "head"))
        clock.now += 1.0
        await pilot.press("R")
        await until(pilot, lambda: "REC" not in shown(pilot, "head"))
        (file,) = tmp_path.iterdir()
        told = [notification.message for notification in pilot.app._notifications]
        assert any(str(file) in message and "8 UUIDs" in message for message in told)
        await readings(pilot, clock, 2)
    assert file.name == "gdrtop-hgx-h100-20231114-221321.tar.gz"
    host = ReplayHost(read_archive(chunks_of(str(file))))
    assert len(host.recording.moments) == 5
    assert host.recording.moments[0].probed
    node = probe_node(host)
    assert node.pci == probe_node(SimulatedHost("hgx-h100", clock=clock)).pci
    assert host.origin.source is Source.RECORDED


@pytest.mark.slow
async def test_quitting_keeps_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("cloud-vm", clock=clock))
    async with app.run_test(size=(80, 24)) as pilot:
        await readings(pilot, clock, 1)
        await pilot.press("R")
        await until(pilot, lambda: "REC 1 " in shown(pilot, "head"))
        await pilot.press("q")
    recorded = app.readings.end_recording()
    assert recorded is not None
    (file,) = tmp_path.iterdir()
    assert str(file) in str(recorded)
    assert not read_archive(chunks_of(str(file))).damage


@pytest.mark.slow
async def test_an_unwritable_directory_is_reported_on_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.chdir(tmp_path)
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("cloud-vm", clock=clock))
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await readings(pilot, clock, 1)
        monkeypatch.setattr("tui.files.new_file.os.open", refused)
        await pilot.press("R")
        notifications = pilot.app._notifications
        await until(
            pilot, lambda: any("Permission denied" in notification.message for notification in notifications)
        )
        assert "REC" not in shown(pilot, "head")
        monkeypatch.undo()
        await readings(pilot, clock, 2)
    assert not list(tmp_path.iterdir())


async def test_the_next_event_of_a_recording_is_found_before_it_was_played() -> None:
    clock = SteppedClock()
    host = recorded(SimulatedHost("hgx-h100+job-restarted-staged", clock=clock), clock, 50)
    found = [event for events, _ in ReplaySource(host).events() for event in events]
    moments = [host.recording.moment_at(event.at) + 1 for event in found]
    assert "restarted and now copy" in found[-1].text
    app = GdrtopApp(lambda: host, host.origin, None, ReplaySource(host))
    async with app.run_test(size=(120, 40)) as pilot:
        await at(pilot, 1, 50)
        await pilot.press("t")
        await until(pilot, lambda: isinstance(app.screen, LiveScreen))
        steps = [(")", moment) for moment in moments] + [("(", moment) for moment in reversed(moments[:-1])]
        for key, moment in steps:
            await pilot.press(key)
            await until(pilot, lambda moment=moment: f"{moment}/50" in lines_of(pilot, "head"))
        assert "copy through host memory" in lines_of(pilot, "changes")  # what is still to come
