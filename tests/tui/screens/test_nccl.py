"""The NCCL screen: keys pressed, screens read."""

import os
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from probes.simulation.host import SimulatedHost
from probes.simulation.node.jobs.processes import FIRST_RANK, end_program
from tests.support.action_screens import is_on, on, seen
from tests.support.nccl_logs import channel, info
from tests.support.pilot import SteppedClock, readings, shown, stepped_app, until
from tests.support.recordings import recorded
from tui.app import GdrtopApp
from tui.runtime.replay_source import ReplaySource
from tui.screens.help import HelpScreen
from tui.screens.live.screen import LiveScreen
from tui.screens.nccl import NcclScreen

LOG = "/home/alice/llm/slurm-4711.out"


def app_and_clock(name: str = "hgx-h100") -> tuple[GdrtopApp, SteppedClock]:
    clock = SteppedClock()
    return stepped_app(SimulatedHost(name, clock=clock)), clock


async def listed(pilot: Pilot[None], clock: SteppedClock) -> None:
    """Show the screen, with what was found."""
    await readings(pilot, clock, 3)
    await pilot.press("n")
    await on(pilot, NcclScreen)
    await until(pilot, lambda: "…" not in seen(pilot, "logs").partition("\n")[0][:30])


async def followed(pilot: Pilot[None], clock: SteppedClock) -> None:
    await listed(pilot, clock)
    await pilot.press("enter")
    await until(pilot, lambda: "channels on" in seen(pilot, "log"))


def follow(pilot: Pilot[None]) -> None:
    """What the screen does each second."""
    assert isinstance(pilot.app.screen, NcclScreen)
    pilot.app.screen.follow()


async def typed(pilot: Pilot[None], path: object) -> None:
    await pilot.press("O")
    pilot.app.screen.query_one("#path", Input).value = str(path)
    await pilot.press("enter")


@pytest.mark.slow
async def test_the_log_of_a_job_is_listed_opened_and_followed() -> None:
    app, clock = app_and_clock("hgx-h100+job-restarted-staged")
    async with app.run_test(size=(120, 40)) as pilot:
        await listed(pilot, clock)
        row = seen(pilot, "logs")
        assert LOG in row
        assert "KiB" in row
        assert "train.py (alice, Slurm job 4711)" in row
        assert "NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,ENV" in seen(pilot, "log")
        await pilot.press("enter")
        await until(pilot, lambda: "channels on" in seen(pilot, "log"))
        assert seen(pilot, "log").startswith("✓ GPUDirect RDMA: 32 of 32 channels on 8 of 8 ranks")
        assert f"Following {LOG}" in seen(pilot, "summary")
        clock.now += 60.0  # the job has restarted without GPUDirect RDMA
        follow(pilot)
        await until(pilot, lambda: seen(pilot, "log").startswith("✗ GPUDirect RDMA: 0 of 32 channels"))
        assert "read again from the start" in " ".join(seen(pilot, "summary").split())
        await pilot.press("escape", "escape")
        await until(pilot, lambda: not is_on(pilot, NcclScreen))


@pytest.mark.slow
async def test_n_on_a_rank_opens_the_log_of_its_job() -> None:
    app, clock = app_and_clock("hgx-h100+two-jobs-two-users")
    async with app.run_test(size=(120, 40)) as pilot:
        await readings(pilot, clock, 3)
        await pilot.press("t")
        await until(pilot, lambda: "42003" in seen(pilot, "ranks"))
        await pilot.press("G", "n")
        await on(pilot, NcclScreen)
        await until(pilot, lambda: "16 of 16 channels on 4 of 4 ranks" in seen(pilot, "log"))
        assert "slurm-4712.out" in seen(pilot, "log")
        await pilot.press("escape")
        assert "slurm-4711.out" in seen(pilot, "logs")
        await pilot.press("q")
        await on(pilot, LiveScreen)


async def test_the_filter_and_the_written_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app, clock = app_and_clock()
    async with app.run_test(size=(80, 24)) as pilot:
        await followed(pilot, clock)
        await pilot.press("slash")
        word = pilot.app.screen.query_one("#word", Input)
        word.value = "no such word"
        await until(pilot, lambda: "No line contains" in seen(pilot, "log"))
        word.value = "Network"
        await pilot.press("enter")
        await until(pilot, lambda: seen(pilot, "log").splitlines()[0].split()[0] == "Network")
        await pilot.press("escape")
        await until(pilot, lambda: "GPUDirect RDMA" in seen(pilot, "log"))
        await pilot.press("w")
        await until(pilot, lambda: list(tmp_path.iterdir()))
        text = next(tmp_path.iterdir()).read_text()
        assert LOG in text
        assert "32 of 32 channels" in text


@pytest.mark.slow
async def test_a_typed_file_is_followed(tmp_path: Path) -> None:
    app, clock = app_and_clock()
    log, pipe = tmp_path / "[/red]my.log", tmp_path / "pipe"  # no markup
    log.parent.mkdir()
    log.write_text(info(channel()) + f"\x1b[2J{info(channel())}" + "x" * 100_000)
    os.mkfifo(pipe)
    async with app.run_test(size=(120, 40)) as pilot:
        await listed(pilot, clock)
        await typed(pilot, pipe)
        await until(
            pilot,
            lambda: any(
                "a pipe, not a file" in notification.message for notification in pilot.app._notifications
            ),
        )
        await typed(pilot, log)
        await until(pilot, lambda: "2 of 2 channels" in seen(pilot, "log"))
        assert "\x1b" not in seen(pilot, "log")
        with log.open("a") as out:
            out.write("\n" + info(channel(gdr=False)))
        follow(pilot)
        await until(pilot, lambda: "2 of 3 channels" in seen(pilot, "log"))
        await pilot.press("escape")
        assert "KiB  file  " in seen(pilot, "logs")
        assert LOG in seen(pilot, "logs")


@pytest.mark.slow
async def test_without_a_job_the_screen_says_what_to_set() -> None:
    clock = SteppedClock()
    host = SimulatedHost("hgx-h100", clock=clock)
    for number in range(8):
        end_program(host.tree, FIRST_RANK + number)
    app = stepped_app(host)
    async with app.run_test(size=(80, 24)) as pilot:
        await listed(pilot, clock)
        assert "No job on this node uses NCCL" in seen(pilot, "logs")
        advice = seen(pilot, "log")
        for variable in ("NCCL_DEBUG=INFO", "NCCL_DEBUG_FILE=/tmp/nccl.%h.%p.log"):
            assert variable in advice
        await pilot.press("enter", "w", "slash", "escape", "O", "escape", "question_mark")
        await on(pilot, HelpScreen)
        await until(pilot, lambda: "nccl-log" in seen(pilot, "summary"))


@pytest.mark.slow
async def test_a_recording_has_no_logs() -> None:
    clock = SteppedClock()
    host = recorded(SimulatedHost("hgx-h100", clock=clock), clock, 3)
    app = GdrtopApp(lambda: host, host.origin, None, ReplaySource(host))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "1/3" in shown(pilot, "head"))
        await pilot.press("end", "n")
        await on(pilot, NcclScreen)
        await until(pilot, lambda: "recordings do not contain job logs" in seen(pilot, "log"))
        assert "No NCCL log was found" in seen(pilot, "logs")
