"""A terminal that goes away, and a kill: gdrtop ends, and the step under way is waited for."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.support.tiers import usual

ROOT = Path(__file__).parents[3]
# A node whose one command takes a while, and notes its beginning and end.
_PROGRAM = """
import pathlib, sys, time
from dataclasses import replace
from probes.simulation.host import SimulatedHost
from tui.app import GdrtopApp

notes = pathlib.Path(sys.argv[1])

class Slow(SimulatedHost):
    def perform(self, argv, given=""):
        (notes / "began").touch()
        while not (notes / "go").exists():
            time.sleep(0.05)
        (notes / "ended").touch()
        return replace(super().perform(argv, given), seconds=0.0)

host = Slow("hgx-h100+nvidia-not-loaded")
app = GdrtopApp(lambda: host, host.origin)
try:
    app.run()
finally:
    app.quitting.finish()
(notes / "left").touch()
"""


# Writes more than a terminal holds that nobody reads.
_FLOOD = """
import pathlib, sys
from tui.app import GdrtopApp
from tui.cli import main

def flood(app):
    (pathlib.Path(sys.argv[1]) / "began").touch()
    for _ in range(1000):
        app._driver.write("x" * 4096)

GdrtopApp.on_ready = flood
sys.exit(main(["--demo"]))
"""
_DEMO = "import sys; from tui.cli import main; sys.exit(main(['--demo']))"


class Terminal:
    """A program on a terminal of its own, which sends SIGHUP when it goes only with `controlling`."""

    def __init__(self, notes: Path, program: str = _PROGRAM, controlling: bool = True) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(notes)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if controlling else None,
        )
        os.close(slave)

    def wait_for(self, text: bytes) -> None:
        """Read until the screen has shown a text."""
        self.press_until(b"", text)

    def press_until(self, key: bytes, text: bytes) -> None:
        """Presses a key again and again until the screen has shown a text."""
        shown, deadline = b"", time.monotonic() + 60
        while text not in shown:
            assert time.monotonic() < deadline, shown[-2000:]
            os.write(self.master, key)
            while select.select([self.master], [], [], 0.5)[0]:
                shown += os.read(self.master, 1 << 16)
                if text in shown:
                    return

    def read_on(self, seconds: float) -> None:
        """Takes what is printed, so that nobody waits for a full terminal."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if select.select([self.master], [], [], 0.05)[0]:
                try:
                    os.read(self.master, 1 << 16)
                except OSError:
                    return


@pytest.mark.slow
@pytest.mark.parametrize("how", usual(["hangup", "kill"], {"hangup"}))
def test_a_signal_waits_for_the_running_step(tmp_path: Path, how: str) -> None:
    terminal = Terminal(tmp_path)
    process = terminal.process
    try:
        terminal.press_until(b"l", b"nothing has been run")
        terminal.press_until(b"\r", b"step 1/")
        assert (tmp_path / "began").exists()
        if how == "hangup":
            os.close(terminal.master)
        else:
            process.send_signal(signal.SIGTERM)
            terminal.read_on(2.0)
            process.send_signal(signal.SIGTERM)  # a second one kills nobody
            terminal.read_on(1.0)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        (tmp_path / "go").touch()
        if how == "kill":
            terminal.read_on(3.0)
        process.wait(60)
    finally:
        process.kill()
    assert (tmp_path / "ended").exists()
    assert (tmp_path / "left").exists()


@pytest.mark.parametrize("attempt", usual(range(3), {0}))
def test_a_terminal_that_vanishes_without_a_signal_ends_the_program(tmp_path: Path, attempt: int) -> None:
    terminal = Terminal(tmp_path, _DEMO, controlling=False)
    try:
        terminal.wait_for(b"SIMULATED")
        os.close(terminal.master)
        terminal.process.wait(60)
    finally:
        terminal.process.kill()


@pytest.mark.slow
def test_a_blocked_terminal_does_not_keep_sigterm_from_ending_the_program(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, _FLOOD)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "began").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        terminal.process.send_signal(signal.SIGTERM)
        terminal.process.wait(60)
    finally:
        terminal.process.kill()
        os.close(terminal.master)
