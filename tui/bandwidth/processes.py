"""Starts the processes of bandwidth tests and stops them.

Each process has a supervisor, which starts the tool, and stops it with everything that the tool has started:
on request, after its time limit, and when gdrtop has died or hangs (tui/bandwidth/supervisor.py).
Each also has its own pseudo-terminal, so that its lines arrive as they are printed.

What can remain after the end: a process in uninterruptible sleep, which cannot be killed and is reported;
what another service started on the tool's behalf (sshd of a remote host, systemd-run, a container engine);
and, if SIGKILL hits gdrtop and the supervisor at once, a child of the tool that ignores SIGHUP or has left
its process group. Files belong to the tools: a tool that is killed after the grace period may leave
temporary files (mpirun's session directory in /tmp, NCCL's segments in /dev/shm).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from probes.base.frozen import frozen
from probes.host.machine.command import TRUSTED_PATH, find_command
from probes.host.trusted_path import trusted_environment
from tui.bandwidth import supervisor
from tui.terminal.program_output import PtyReader, without_colors

LINE_LIMIT = 4096
# While so many lines wait, no more are read, and the tool blocks. During a stop, the rest is only counted.
LINES_WAITING = 2000
OVERDUE_SECONDS = supervisor.GRACE_SECONDS + supervisor.KILL_SECONDS + 3.0  # then the supervisor hangs
_POLL_SECONDS = 0.2
_READS_AFTER_END = 256  # of up to 4 KiB each; a terminal buffers 64 KiB
_MESSAGE_BYTES = 1 << 16


@frozen
class ProcessExit:
    """How a process ended.

    `exit_status` is negative for a signal, as in subprocess. It is None if the process was not started, could
    not be killed, or its end was not seen; `why` says which. `seconds` count until it ended or was stopped.
    `cpu_seconds` are user and system time of the process and of what it started; None if unknown.
    """

    exit_status: int | None
    seconds: float
    why: str = ""
    cpu_seconds: float | None = None


def process_exit(
    status: int | None, seconds: float, why: str, cpu_seconds: float | None = None
) -> ProcessExit:
    """Return how a process ended, by its supervisor's report."""
    if status is not None and status < 0 and not why:
        why = f"killed by signal {-status}"
    return ProcessExit(status, seconds, why, cpu_seconds)


class ToolProcess(Protocol):
    """A process of a test."""

    def lines(self, seconds: float) -> list[str]:
        """Return the new lines, neutralized and without colors; wait up to `seconds` for the first one."""

    @property
    def ended(self) -> ProcessExit | None:
        """Return how it ended, once `lines` has returned all that it printed."""

    def end(self) -> None:
        """Stop it and everything that it started; at any time, repeatedly, from any thread.

        When this returns, they are gone, or `ended.why` says what is left.
        """


class ProcessStarter(Protocol):
    """Starts the processes of tests."""

    def start(self, argv: Sequence[str], seconds: float) -> ToolProcess:
        """Start a process that is stopped after so many seconds; then `ended.why` says so."""


class LocalProcessStarter:
    """Starts programs on this machine."""

    def __init__(
        self,
        find: Callable[[str], str | None] = find_command,
        grace_seconds: float = supervisor.GRACE_SECONDS,
    ) -> None:
        """`find` returns a program's path, or None; `grace_seconds` pass between SIGTERM and SIGKILL."""
        self._find, self._grace_seconds = find, grace_seconds

    def start(self, argv: Sequence[str], seconds: float) -> ToolProcess:
        """Start a program of the trusted path, which it also gets as its PATH."""
        if (path := self._find(argv[0])) is None:
            return NotStarted(f"{argv[0]} is not installed")
        order = {"argv": [path, *argv[1:]], "seconds": seconds, "grace_seconds": self._grace_seconds}
        try:
            return _start(order)
        except OSError as error:
            return NotStarted(f"{path} could not be started: {error.strerror}")


@frozen
class NotStarted:
    """Stands for a process that could not be started."""

    why: str

    def lines(self, seconds: float) -> list[str]:
        """Return no lines."""
        del seconds
        return []

    @property
    def ended(self) -> ProcessExit:
        """Return why it was not started."""
        return ProcessExit(None, 0.0, self.why)

    def end(self) -> None:
        """Do nothing."""


def _start(order: dict[str, Any]) -> _LocalProcess:
    """Start a supervisor, or raise OSError if there is no process, terminal or descriptor left for it."""
    master, slave = supervisor.open_terminal()
    output = PtyReader(master, LINE_LIMIT)
    control: socket.socket | None = None
    remote: socket.socket | None = None
    try:
        control, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Not as arguments: a search for the tool's name must not find the supervisor.
        control.send(json.dumps(order).encode())
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__],
            stdin=remote.fileno(),
            stdout=slave,
            stderr=subprocess.DEVNULL,
            env=supervisor.environment(TRUSTED_PATH, trusted_environment()),
            cwd="/",
            umask=0o022,
            # Ctrl-C and the hangup of our terminal are for gdrtop alone.
            start_new_session=True,
        )
        return _LocalProcess(process, control, output)
    except OSError:
        output.close()
        if control is not None:
            control.close()
        raise
    finally:
        os.close(slave)
        if remote is not None:
            remote.close()


class _LocalProcess:
    """A process, its supervisor, and its terminal; the thread that holds the lock reads for all."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, output: PtyReader) -> None:
        self._supervisor, self._control, self._output = process, control, output
        self._began = time.monotonic()
        self._reading = threading.Lock()
        self._closing = threading.Lock()  # one thread may close the control socket while another uses it
        self._waiting: deque[str] = deque()
        self._skipped = 0
        self._reads_left = _READS_AFTER_END
        self._leader = 0
        self._failure = ""
        self._overdue_at: float | None = None  # set while it is being stopped
        self._exit: ProcessExit | None = None
        self._all_read = False

    def lines(self, seconds: float) -> list[str]:
        until = time.monotonic() + seconds
        with self._reading:
            while not self._waiting and not self._all_read:
                left = until - time.monotonic()
                self._read(max(0.0, left))
                if left <= 0:
                    break
            lines = list(self._waiting)
            self._waiting.clear()
            return lines

    @property
    def ended(self) -> ProcessExit | None:
        return self._exit if self._all_read and not self._waiting else None

    def end(self) -> None:
        if self._overdue_at is None:
            self._overdue_at = time.monotonic() + OVERDUE_SECONDS
        with self._closing:
            if self._control.fileno() >= 0:
                # The supervisor sees the same when gdrtop dies, so that both stops work alike.
                with contextlib.suppress(OSError):  # it has died; reading will show it
                    self._control.shutdown(socket.SHUT_WR)
        while not self._all_read:
            with self._reading:
                if not self._all_read:
                    self._read(_POLL_SECONDS)

    def _read(self, seconds: float) -> None:
        """Read some output and a message of the supervisor; wait a moment at most."""
        if self._exit is not None:
            self._read_rest()
            return
        wanted: list[socket.socket | PtyReader] = [self._control]
        if len(self._waiting) < LINES_WAITING or self._overdue_at is not None:
            wanted.append(self._output)
        ready = select.select(wanted, [], [], min(seconds, _POLL_SECONDS))[0]
        if self._output in ready:
            self._keep(self._output.read(0.0) or ())
        if self._control in ready:
            self._handle_message()
        elif self._overdue_at is not None and time.monotonic() > self._overdue_at:
            self._failure = "its supervisor did not respond and was killed"
            self._supervisor.kill()

    def _read_rest(self) -> None:
        """Read what the terminal still buffers; bounded, because a process may be left and go on printing."""
        lines = self._output.read(0.0) if self._reads_left else None
        self._reads_left -= 1
        self._keep(lines if lines is not None else self._output.rest())
        if lines is None:
            if self._skipped:
                self._waiting.append(f"… and {self._skipped} more lines")
            self._output.close()
            self._all_read = True

    def _keep(self, lines: Iterable[str]) -> None:
        for line in lines:
            if self._overdue_at is not None and len(self._waiting) >= LINES_WAITING:
                self._skipped += 1
            else:
                self._waiting.append(without_colors(line))

    def _handle_message(self) -> None:
        try:
            packet = self._control.recv(_MESSAGE_BYTES)
        except OSError:
            packet = b""
        message: dict[str, Any] = json.loads(packet) if packet else {"ended": self._end_orphans()}
        if "started" in message:
            self._leader = message["started"]
        if "failed" in message:
            self._failure = message["failed"]
        if "ended" not in message:
            return
        self._exit = process_exit(*message["ended"])
        with self._closing:
            self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it stays with what could not be killed
            self._supervisor.wait(1.0)

    def _end_orphans(self) -> tuple[None, float, str, None]:
        """Kill what a dead supervisor has left; return how the process ended."""
        took = time.monotonic() - self._began
        self._supervisor.kill()
        status = self._supervisor.wait()
        return None, took, supervisor.end_orphans(self._leader, status, self._failure), None
