"""The dashboard on terminals of other programs."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shlex
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyte


@contextmanager
def tmux(directory: Path, columns: int, rows: int, program: Sequence[str]) -> Iterator[Callable[..., str]]:
    """Run a program in a tmux server of its own, and yield what runs the commands of tmux."""

    def run(*arguments: str) -> str:
        command = ["tmux", "-S", str(directory / "socket"), "-f", "/dev/null", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    run("new-session", "-d", "-x", str(columns), "-y", str(rows), f"exec {shlex.join(program)}")
    try:
        yield run
    finally:
        run("kill-server")


LINES, COLUMNS = 40, 120
LONGEST_WAIT_SECONDS = 120.0


class Terminal:
    """gdrtop in a pseudo-terminal, seen through an emulator."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self._master, self.process = master, process
        self.written = b""
        self.screen = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.ByteStream(self.screen)

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    @property
    def cells(self) -> Iterator[pyte.screens.Char]:
        """Every cell that shows something."""
        for row in range(LINES):
            for column in range(COLUMNS):
                yield self.screen.buffer[row][column]

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LONGEST_WAIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.text
            if select.select([self._master], [], [], 0.2)[0]:
                try:
                    written = os.read(self._master, 1 << 16)
                except OSError:  # it has ended
                    return
                self.written += written
                self._stream.feed(written)


@contextmanager
def dashboard(*arguments: str, multiplexer: tuple[str, ...] = (), **environment: str) -> Iterator[Terminal]:
    """Run gdrtop on a terminal, or in a multiplexer there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TEXTUAL")}
    argv = [*multiplexer, sys.executable, "-m", "tui", *arguments]
    with on_terminal(argv, {**kept, "LANG": "C.UTF-8", **environment}) as terminal:
        yield terminal


@contextmanager
def on_terminal(argv: Sequence[str | Path], environment: dict[str, str]) -> Iterator[Terminal]:
    """Run a program on a terminal, with this environment alone."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    process = subprocess.Popen(
        argv, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    )
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        process.kill()
        process.wait()
        os.close(master)
