"""What gdrtop writes, replayed: after every frame, an emulator shows what Textual's own output would show."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from textual import events
from textual._compositor import CompositorUpdate, LayoutUpdate
from textual._context import visible_screen_stack

from probes.simulation.host import SimulatedHost
from tests.support.emulator import Emulator, differences
from tests.support.pilot import SteppedClock, examined, readings, stepped_app, until
from tests.support.terminals import tmux
from tests.support.tiers import usual
from tui.app import GdrtopApp

LONGEST_WAIT_SECONDS = 60.0
SIZES = [(80, 24), (120, 40), (200, 60)]
# The doctor, scrolled, with a fix; Live; help; actions with a filter; bandwidth; the palette; a zoomed pane.
KEYS = [
    *("d", "down", "pagedown", "pageup", "e", "f", "q", "q", "t", "down", "q", "question_mark", "pagedown"),
    *("q", "x", "slash", "p", "o", "r", "t", "enter", "q", "b", "down", "q", "ctrl+p", "l", "o", "a"),
    *("escape", "tab", "down", "z", "z", "ctrl+l"),
]
FEW_KEYS = ["d", "down", "q", "question_mark", "q", "ctrl+p", "l", "escape"]


@dataclass
class Frames:
    """The frames of an app, shown on one emulator by gdrtop's output and on another one by Textual's."""

    app: GdrtopApp
    ours: Emulator = field(default_factory=lambda: Emulator(1, 1))
    textual: Emulator = field(default_factory=lambda: Emulator(1, 1))
    count: int = 0
    bytes_written: int = 0
    bytes_by_textual: int = 0
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._display = self.app._display
        self._size = (1, 1)
        self.app._display = self._show  # type: ignore[method-assign,assignment]

    def _show(self, screen: object, update: object) -> None:
        self._display(screen, update)  # type: ignore[arg-type]
        if not isinstance(update, CompositorUpdate) or self.app._batch_count:
            return
        size = self.app.screen.outer_size
        if size != self._size:
            self._size = size
            self.ours, self.textual = Emulator(*size), Emulator(*size)
        minimized = self.app._output.minimized(self.app.screen, update)  # type: ignore[arg-type]
        assert isinstance(minimized, CompositorUpdate)
        written, by_textual = (frame.render_segments(self.app.console) for frame in (minimized, update))
        self.ours.feed(written)
        self.textual.feed(by_textual)
        self.count += 1
        self.bytes_written += len(written.encode())
        self.bytes_by_textual += len(by_textual.encode())
        self.wrong += [
            f"frame {self.count}, {difference}" for difference in differences(self.ours, self.textual)
        ]

    def repainted(self) -> Emulator:
        """Return what the compositor holds: Textual's full repaint."""
        visible_screen_stack.set(self.app._background_screens)
        compositor = self.app.screen._compositor
        region = compositor.size.region
        lines = [chop.values() for chop in compositor._render_chops(region, lambda _: True)]
        emulator = Emulator(*region.size)
        emulator.feed(LayoutUpdate(lines, region).render_segments(self.app.console))
        return emulator


async def test_every_frame_is_the_one_of_textual() -> None:
    await compare_frames((80, 24), FEW_KEYS)


@pytest.mark.slow
async def test_an_unknown_version_of_textual_draws_every_frame_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tui.terminal.textual_version.TESTED_VERSIONS", ())
    await compare_frames((80, 24), FEW_KEYS, is_tested=False)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_every_frame_of_every_screen_is_the_one_of_textual(size: tuple[int, int]) -> None:
    await compare_frames(size, KEYS)


async def compare_frames(size: tuple[int, int], keys: Sequence[str], is_tested: bool = True) -> None:
    """Press keys, resize the terminal, and compare every frame of both outputs.

    `is_tested`: whether gdrtop's output is to be used, or else Textual's.
    """
    clock = SteppedClock()
    app = stepped_app(SimulatedHost("hgx-h100+acs-on", clock=clock))
    frames = Frames(app)
    async with app.run_test(size=size) as pilot:
        await examined(pilot, clock)
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
        for other in ((size[0] + 13, size[1] - 3), size):
            await pilot.resize_terminal(*other)
            await readings(pilot, clock, 2)
        before = frames.bytes_written
        app.post_message(events.Resize(app.size, app.size))  # other sizes before that nobody noticed
        await until(pilot, lambda: frames.bytes_written - before >= size[0] * size[1])
        await pilot.pause(0.2)
        assert frames.wrong == []
        assert differences(frames.ours, frames.repainted()) == []
        assert frames.count > len(keys)
        assert app._output.is_used is is_tested
        if is_tested:
            assert frames.bytes_written < frames.bytes_by_textual / 3
        else:
            assert frames.bytes_written == frames.bytes_by_textual


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
@pytest.mark.parametrize("option", usual(["", "--ascii", "NO_COLOR=1"], [""]))
def test_in_tmux_no_cell_is_wrong(option: str, tmp_path: Path) -> None:
    environment, arguments = ([option], []) if "=" in option else ([], [option] if option else [])
    environment = ["env", "-u", "COLUMNS", "-u", "LINES", *environment]
    program = [*environment, sys.executable, "-m", "tui", *arguments, "--demo", "hgx-h100+no-gdr-path"]
    with tmux(tmp_path, 100, 30, program) as run:

        def until(condition: Callable[[], bool]) -> None:
            deadline = time.monotonic() + LONGEST_WAIT_SECONDS
            while not condition():
                assert time.monotonic() < deadline, run("capture-pane", "-p")
                time.sleep(0.1)

        def shown() -> str:
            return run("capture-pane", "-e", "-p")

        until(lambda: "BROKEN" in shown() and "checking" not in shown())
        for keys, words in (("d", "Evidence"), ("q", "Topology"), ("?", "EVERYWHERE"), ("q", "Topology")):
            run("send-keys", keys)
            until(lambda words=words: words in shown())  # type: ignore[misc]
        run("resize-window", "-x", "110", "-y", "33")
        run("send-keys", "Tab", "Space")
        until(lambda: "PAUSED" in shown())
        time.sleep(1.0)  # the last frame
        by_changes = shown()
        pid, device = run("display-message", "-p", "#{pane_pid} #{pane_tty}").split()
        # Ctrl-L repairs what others wrote to the terminal, and so do Ctrl-Z and fg, which tmux does itself.
        for repair in (lambda: run("send-keys", "C-l"), lambda: os.kill(int(pid), signal.SIGTSTP)):
            Path(device).write_text("\x1b[5;5Hwall: shutting down")
            until(lambda: "wall: shutting down" in shown())
            repair()
            until(lambda: shown() == by_changes)
