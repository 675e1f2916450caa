"""Drives the screens of bandwidth tests: a bench whose processes say only what a test tells them to."""

from __future__ import annotations

import queue
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from textual.pilot import Pilot

from probes.simulation.host import SimulatedHost
from tests.support.action_screens import on, question, seen
from tests.support.pilot import SteppedClock, readings, stepped_app, until
from tui.bandwidth.processes import ProcessExit
from tui.bandwidth.session import BenchSession
from tui.screens.bandwidth_run.screen import BandwidthRunScreen
from tui.screens.bandwidth_setup import BandwidthSetupScreen
from widgets.base.lines import plain

WAITING = ("************************************", "* Waiting for client to connect... *")
HEADING = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"


def row(gbps: float, size: int = 1 << 20) -> str:
    return f" {size}    23269            0.00               {gbps:.2f}                       0.023269"


def memory_lines(argv: Sequence[str]) -> list[str]:
    """What perftest prints of a GPU's memory before its rows; nothing of host memory."""
    words = " ".join(argv)
    lines = ["allocated GPU buffer of a 2097152 address at 0x7f0000000000"] if "--use_cuda" in words else []
    if "--use_cuda_dmabuf" in words:
        lines.append(
            "Calling ibv_reg_dmabuf_mr(offset=0, size=2097152, addr=0x7f0000000000, fd=58) for QP #0"
        )
    return lines


class ScriptedProcess:
    """Prints what it is told to."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = tuple(argv)
        self.was_ended = False
        self._told: queue.Queue[str] = queue.Queue()
        self._status: int | None = None

    def say(self, *lines: str) -> None:
        for line in lines:
            self._told.put(line)

    def finish(self, status: int = 0) -> None:
        self._status = status

    def lines(self, seconds: float) -> list[str]:
        found = []
        try:
            found.append(self._told.get(timeout=min(0.01, seconds) or 0.001))
            while True:
                found.append(self._told.get_nowait())
        except queue.Empty:
            return found

    @property
    def ended(self) -> ProcessExit | None:
        if not self._told.empty() or (self._status is None and not self.was_ended):
            return None
        if self._status is None:
            return ProcessExit(143, 1.0, "canceled")
        return ProcessExit(self._status, 1.0)

    def end(self) -> None:
        self.was_ended = True


class ScriptedProcesses:
    """Starts them, and keeps them for the test."""

    def __init__(self) -> None:
        self.started: list[ScriptedProcess] = []

    def start(self, argv: Sequence[str], seconds: float) -> ScriptedProcess:
        self.started.append(ScriptedProcess(argv))
        return self.started[-1]


def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedProcesses:
    """A bench that starts nothing but these."""
    processes = ScriptedProcesses()
    monkeypatch.setattr(BenchSession, "_starter", lambda session: processes)
    monkeypatch.setattr("tui.controllers.bandwidth.DRAW_SECONDS", 0.01)  # each row is waited for
    return processes


async def set_up(pilot: Pilot[None], clock: SteppedClock, *keys: str) -> None:
    """The settings, after `keys` on them, with what would be run."""
    await readings(pilot, clock, 3)
    await pilot.press("b")
    await on(pilot, BandwidthSetupScreen)
    await planned(pilot)
    for key in keys:
        await pilot.press(key)
    await planned(pilot)


async def planned(pilot: Pilot[None]) -> None:
    """Waits until what would be run is told."""
    told = ("takes", "cannot run", "No test can run")
    await pilot.pause()
    await until(pilot, lambda: any(word in seen(pilot, "planned") for word in told))


async def started(pilot: Pilot[None]) -> None:
    """Runs what is set up, though the simulated job would feel it."""
    await pilot.press("enter")
    await until(pilot, lambda: "Run it anyway" in question(pilot))
    await pilot.press("y")
    await on(pilot, BandwidthRunScreen)


@asynccontextmanager
async def begun(
    monkeypatch: pytest.MonkeyPatch, *keys: str, name: str = "hgx-h100", size: tuple[int, int] = (120, 40)
) -> AsyncIterator[tuple[Pilot[None], SteppedClock, ScriptedProcesses]]:
    """A series that was set up by `keys` on a simulated node and has begun; its ends are what tests say."""
    processes, clock = scripted(monkeypatch), SteppedClock()
    async with stepped_app(SimulatedHost(name, clock=clock)).run_test(size=size) as pilot:
        await set_up(pilot, clock, *keys)
        await started(pilot)
        yield pilot, clock, processes


def printed(pilot: Pilot[None]) -> str:
    """The console, also where there is no room for it."""
    screen = pilot.app.screen
    assert isinstance(screen, BandwidthRunScreen)
    return "\n".join(plain(line) for line in screen.state.console.lines(200))


async def met(
    pilot: Pilot[None], clock: SteppedClock, processes: ScriptedProcesses, test: int = 1, series: int = 1
) -> None:
    """Both ends of a test run, and the client has printed the heading of its rows.

    `test` counts those of all series; those before the newest series had one each.
    """
    await until(pilot, lambda: len(processes.started) >= 2 * test - 1)
    processes.started[2 * test - 2].say(*WAITING)
    await until(pilot, lambda: printed(pilot).count("Waiting for client") > test - series)
    clock.now += 10.0  # the server's port cannot be seen to listen, so the client waits this long
    await until(pilot, lambda: len(processes.started) == 2 * test)
    client = processes.started[2 * test - 1]
    client.say(*memory_lines(client.argv), HEADING)


async def measured(pilot: Pilot[None], clock: SteppedClock, client: ScriptedProcess, *gbps: float) -> None:
    """A row a second."""
    for gbp in gbps:
        before = printed(pilot).count("23269")
        client.say(row(gbp))
        await until(pilot, lambda before=before: printed(pilot).count("23269") > before)
        clock.now += 1.0


async def completed(
    pilot: Pilot[None], clock: SteppedClock, client: ScriptedProcess, gbps: float, seconds: int = 10
) -> None:
    """Rows for as long as a test takes, and then the time at which it is ended, with no further row.

    A row after that time may or may not still be read.
    """
    await measured(pilot, clock, client, *[gbps] * seconds)
    clock.now += 1.0  # the first row may have been dated a second late


async def over(pilot: Pilot[None]) -> None:
    """The series has ended, and its screen says so."""
    words = ("done", "canceled")
    await until(pilot, lambda: any(word in seen(pilot, "summary") for word in words))
    await pilot.pause()
