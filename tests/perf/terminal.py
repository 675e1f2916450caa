"""Runs a program in a pseudo-terminal and measures what it writes and costs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from tests.perf.command import Command, NotMeasured

RUNNING = (-signal.SIGKILL,)  # the status of a program that runs until it is no longer measured
_SCREEN = r"\x1b\[\?1049h[\s\S]*"  # an error message is not on the dashboard's screen


def dashboard(argv: Sequence[str], word: str = "Overview") -> Command:
    """Return a command that draws this word on a screen of its own, and runs on."""
    return Command(argv, RUNNING, _SCREEN + word)


@dataclass(frozen=True)
class Cost:
    """What a program cost over a stretch of time."""

    seconds: float
    bytes_written: int
    cpu_seconds: float
    rss_bytes: int
    uss_bytes: int


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU seconds of a process and all its threads, ended ones too.

    Raises:
        OSError: there is no such process.
    """
    # What clock_getcpuclockid(3) returns. /proc/PID/stat counts in 10 ms: a tenth of what is measured here.
    return time.clock_gettime(~pid << 3 | 2)


class Terminal:
    """A program in a pty of `columns` × `lines`; everything it writes is read at once."""

    def __init__(self, command: Command, columns: int = 120, lines: int = 40) -> None:
        self.command = command
        self.started = time.perf_counter()
        self.descriptor, slave = pty.openpty()
        # Not select(), whose descriptors end at 1024: hosts of other measurements have files open.
        self._poll = select.poll()
        self._poll.register(self.descriptor, select.POLLIN)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("NO_COLOR", "COLUMNS", "LINES") and not name.startswith("TEXTUAL")
        }
        self._process = command.start(
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={
                **environment,
                **command.environment,
                "TERM": "xterm-256color",
                "COLORTERM": "truecolor",
                "LANG": "C.UTF-8",
            },
            start_new_session=True,
        )
        os.close(slave)
        self.written = 0
        self.text = b""
        self.has_ended = False

    @property
    def pid(self) -> int:
        """The program's process."""
        return self._process.pid

    def read_for(self, seconds: float) -> None:
        """Reads what comes for so long."""
        read_together((self,), seconds)

    def wait_for(self, output: str, seconds: float = 20.0) -> float:
        """Seconds from the start until the program had written what this regular expression finds.

        Raises:
            NotMeasured: it has not, or it ended before.
        """
        until = time.perf_counter() + seconds
        content = re.compile(output.encode())
        while not content.search(self.text):
            if self.has_ended or time.perf_counter() > until:
                told = f"did not write {output!r} in {seconds} s, but {self.text[-200:]!r}"
                raise NotMeasured(f"{' '.join(self.command.argv)} {told}")
            if self._poll.poll(500):
                self.read_now()
        return time.perf_counter() - self.started

    def send(self, keys: bytes) -> None:
        """Type keys."""
        os.write(self.descriptor, keys)

    def read_now(self) -> None:
        """Read what has come, which there must be."""
        try:
            came = os.read(self.descriptor, 1 << 16)
        except OSError:
            came = b""
        self.has_ended = not came
        self.written += len(came)
        self.text = (self.text + came)[-(1 << 20) :]

    def cost_over(self, seconds: float) -> Cost:
        """What the program costs over the next seconds."""
        (cost,) = costs_over((self,), seconds)
        return cost

    def require_running(self) -> None:
        """Check that the program has not ended.

        Raises:
            NotMeasured: it has.
        """
        status = self._process.poll()
        if self.has_ended or status is not None:
            raise NotMeasured(f"{' '.join(self.command.argv)} ended with {status}: {self.text[-200:]!r}")

    def close(self) -> None:
        """Ends the program."""
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self.descriptor)


def read_together(terminals: Sequence[Terminal], seconds: float) -> None:
    """Read what comes from all of them for so long."""
    poll, by_descriptor = select.poll(), {terminal.descriptor: terminal for terminal in terminals}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    until = time.perf_counter() + seconds
    while (left := until - time.perf_counter()) > 0:
        for descriptor, _ in poll.poll(left * 1000):
            by_descriptor[descriptor].read_now()
            if by_descriptor[descriptor].has_ended:
                poll.unregister(descriptor)


def costs_over(terminals: Sequence[Terminal], seconds: float) -> list[Cost]:
    """Return what each program costs over the next seconds, the same ones for all.

    Raises:
        NotMeasured: one of them has ended.
    """
    for terminal in terminals:
        terminal.require_running()
    before = [(cpu_seconds_of(terminal.pid), terminal.written) for terminal in terminals]
    began = time.perf_counter()
    read_together(terminals, seconds)
    costs = []
    for terminal, (cpu, written) in zip(terminals, before, strict=True):
        terminal.require_running()
        took, cpu = time.perf_counter() - began, cpu_seconds_of(terminal.pid) - cpu
        memory = psutil.Process(terminal.pid).memory_full_info()
        costs.append(Cost(took, terminal.written - written, cpu, memory.rss, memory.uss))
    return costs
