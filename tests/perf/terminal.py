"""Runs a program in a pseudo-terminal and measures what it writes and costs."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Cost:
    """What a program cost over a stretch of time."""

    seconds: float
    bytes_written: int
    cpu_seconds: float
    rss_bytes: int
    uss_bytes: int


class Terminal:
    """A program in a pty of `columns` × `lines`; everything it writes is read at once."""

    def __init__(self, argv: Sequence[str], columns: int = 120, lines: int = 40) -> None:
        self.started = time.perf_counter()
        self._master, slave = pty.openpty()
        # Not select(), whose descriptors end at 1024: hosts of other measurements have files open.
        self._poll = select.poll()
        self._poll.register(self._master, select.POLLIN)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("NO_COLOR", "COLUMNS", "LINES") and not name.startswith("TEXTUAL")
        }
        self._process = subprocess.Popen(
            argv,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment, "TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"},
            start_new_session=True,
        )
        os.close(slave)
        self.written = 0
        self.text = b""

    @property
    def pid(self) -> int:
        """The program's process."""
        return self._process.pid

    def read_for(self, seconds: float) -> None:
        """Reads what comes for so long."""
        until = time.perf_counter() + seconds
        while (left := until - time.perf_counter()) > 0:
            self._read(left)

    def wait_for(self, content: bytes, seconds: float = 20.0) -> float:
        """Seconds from the start until the program had written `content`."""
        until = time.perf_counter() + seconds
        while content not in self.text:
            if time.perf_counter() > until:
                raise TimeoutError(f"{content!r} was not written in {seconds} s")
            self._read(0.5)
        return time.perf_counter() - self.started

    def send(self, keys: bytes) -> None:
        """Type keys."""
        os.write(self._master, keys)

    def _read(self, seconds: float) -> None:
        if self._poll.poll(seconds * 1000):
            try:
                came = os.read(self._master, 1 << 16)
            except OSError:
                came = b""
            self.written += len(came)
            self.text = (self.text + came)[-(1 << 20) :]

    def cost_over(self, seconds: float) -> Cost:
        """What the program costs over the next seconds."""
        process = psutil.Process(self._process.pid)
        before, written = process.cpu_times(), self.written
        began = time.perf_counter()
        self.read_for(seconds)
        after, memory = process.cpu_times(), process.memory_full_info()
        return Cost(
            time.perf_counter() - began,
            self.written - written,
            after.user + after.system - before.user - before.system,
            memory.rss,
            memory.uss,
        )

    def close(self) -> None:
        """Ends the program."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._master)
