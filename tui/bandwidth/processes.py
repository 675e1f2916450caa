"""Starts tests and ends them.

Each test has a keeper, a process that starts it and ends it with all that it has started: when it is asked
to, when the time is over, and when gdrtop has died or hangs (tui/bandwidth/supervisor.py). Each has a
pseudo-terminal of its own as well, so that its lines come as they are printed.

What can remain after the end: a process in uninterruptible sleep, which nothing ends and which is told of;
what another service began on the test's behalf (a remote host's sshd, systemd-run, a container engine); and
where gdrtop and the keeper are both killed by SIGKILL at once, a child of the test that ignores SIGHUP or has
left its process group. Files are the tools' own: one that is killed after the grace may leave its temporary
ones (mpirun's session folder in /tmp, NCCL's segments in /dev/shm).
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import tty
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from probes.host.command import TRUSTED_PATH, find_command
from tui.bandwidth import supervisor as keeper
from tui.runtime.ansi_text import without_colors
from tui.runtime.pty_reader import PtyReader

LINE_LIMIT = 4096
# More are not read until these are taken: the test waits. While it is being ended they are counted, not kept.
_LINES_WAITING = 2000
_OVERDUE_SECONDS = keeper.GRACE_SECONDS + keeper.KILL_SECONDS + 3.0  # then the keeper itself hangs
_LOOK_SECONDS = 0.2
_PIECES_AFTER_END = 256  # of up to 4 KiB; a terminal holds 64 KiB
_MESSAGE_BYTES = 1 << 16
# HOME, USER, LOGNAME: mpirun and what ssh calls (ProxyCommand, Match exec) read their settings there.
# SSH_AUTH_SOCK, KRB5CCNAME: without the agent and the ticket ssh would have to ask for a password.
# LD_LIBRARY_PATH: tools built against HPC-X or a CUDA of one's own need it, and gdrtop's own libraries have
# been found by it already, so that it opens no new way; sudo never lets it through to root.
_PASSED_ON = ("HOME", "USER", "LOGNAME", "SSH_AUTH_SOCK", "KRB5CCNAME", "LD_LIBRARY_PATH")


@dataclass(frozen=True)
class ProcessExit:
    """How a test ended.

    `exit_status` is negative for a signal, as subprocess gives it. None: it was not begun, could not be
    ended, or nobody saw its end; `why` says which. `seconds` until it ended or its end was asked for.
    """

    exit_status: int | None
    seconds: float
    why: str = ""


class ToolProcess(Protocol):
    """One test under way."""

    def lines(self, seconds: float) -> list[str]:
        """What it has printed since, harmless and without colours; waits so long for the first line."""

    @property
    def ended(self) -> ProcessExit | None:
        """How it ended, once all that it printed has been taken by `lines`."""

    def end(self) -> None:
        """Ends it and all that it started; at any moment, twice, from any thread.

        They are gone when this returns, or `ended.why` tells what is still there.
        """


class ProcessStarter(Protocol):
    """What starts tests."""

    def start(self, argv: Sequence[str], seconds: float) -> ToolProcess:
        """Starts one, which is ended after so many seconds; `ended.why` says so."""


class LocalProcessStarter:
    """This machine; `find` gives a program's path, or None where it is not installed."""

    def __init__(self, find: Callable[[str], str | None] = find_command) -> None:
        self._find = find

    def start(self, argv: Sequence[str], seconds: float) -> ToolProcess:
        """Starts a program of the trusted path; those that it names in turn, it finds there by PATH."""
        path = self._find(argv[0])
        if path is None:
            return _NotBegun(f"{argv[0]} is not installed")
        try:
            return _start([path, *argv[1:]], seconds)
        except OSError as error:
            return _NotBegun(f"{path} could not be begun: {error.strerror}")


@dataclass(frozen=True)
class _NotBegun:
    """A process that there has never been."""

    why: str

    def lines(self, seconds: float) -> list[str]:
        del seconds
        return []

    @property
    def ended(self) -> ProcessExit:
        return ProcessExit(None, 0.0, self.why)

    def end(self) -> None:
        return


def _start(argv: list[str], seconds: float) -> _LocalProcess:
    """OSError where there is no room for another process, terminal or descriptor."""
    master, slave = pty.openpty()
    output = PtyReader(master, LINE_LIMIT)
    control: socket.socket | None = None
    theirs: socket.socket | None = None
    try:
        _make_quiet(slave)
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Not in the arguments: a keeper is not to be taken for the test by who looks for its name.
        control.send(json.dumps({"argv": argv, "seconds": seconds}).encode())
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__],
            stdin=theirs.fileno(),
            stdout=slave,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            cwd="/",
            umask=0o022,
            # Out of reach of Ctrl-C and of the hangup of our own terminal: these are for us.
            start_new_session=True,
        )
        return _LocalProcess(process, control, output)
    except (OSError, termios.error) as error:
        output.close()
        if control is not None:
            control.close()
        raise OSError(*error.args) from None
    finally:
        os.close(slave)
        if theirs is not None:
            theirs.close()


def _environment() -> dict[str, str]:
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {"PATH": ":".join(TRUSTED_PATH), "LC_ALL": "C.UTF-8", "TERM": "dumb", **passed_on}


def _make_quiet(slave: int) -> None:
    """Lines as they are printed, no echo, and who reads from /dev/tty is at its end at once."""
    tty.setraw(slave)
    settings = termios.tcgetattr(slave)
    settings[6][termios.VMIN] = 0  # termios(3): read(2) gives 0 where nothing has been typed
    termios.tcsetattr(slave, termios.TCSANOW, settings)


class _LocalProcess:
    """A test, its keeper, and its terminal; whoever holds the lock reads for all."""

    def __init__(
        self, process: subprocess.Popen[bytes], control: socket.socket, output: PtyReader
    ) -> None:
        self._keeper, self._control, self._output = process, control, output
        self._began = time.monotonic()
        self._reading = threading.Lock()
        self._closing = threading.Lock()  # of the control: by one thread, while another asks for the end
        self._waiting: deque[str] = deque()
        self._not_kept = 0
        self._pieces_left = _PIECES_AFTER_END
        self._leader = 0
        self._failure = ""
        self._overdue_at: float | None = None  # set: it is being ended
        self._gone: ProcessExit | None = None
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
        return self._gone if self._all_read and not self._waiting else None

    def end(self) -> None:
        if self._overdue_at is None:
            self._overdue_at = time.monotonic() + _OVERDUE_SECONDS
        with self._closing:
            if self._control.fileno() >= 0:
                # What the keeper sees when we die, so that there is one way to end and not two.
                with contextlib.suppress(OSError):  # it has died, and is heard to
                    self._control.shutdown(socket.SHUT_WR)
        while not self._all_read:
            with self._reading:
                if not self._all_read:
                    self._read(_LOOK_SECONDS)

    def _read(self, seconds: float) -> None:
        """Takes one piece of what is printed, and the keeper's word; waits a moment at most."""
        if self._gone is not None:
            self._read_rest()
            return
        wanted: list[socket.socket | PtyReader] = [self._control]
        if len(self._waiting) < _LINES_WAITING or self._overdue_at is not None:
            wanted.append(self._output)
        ready = select.select(wanted, [], [], min(seconds, _LOOK_SECONDS))[0]
        if self._output in ready:
            self._keep(self._output.read(0.0) or ())
        if self._control in ready:
            self._hear()
        elif self._overdue_at is not None and time.monotonic() > self._overdue_at:
            self._failure = "its keeper did not answer and was killed"
            self._keeper.kill()

    def _read_rest(self) -> None:
        """What the terminal still holds; bounded, for what could not be ended may go on printing."""
        lines = self._output.read(0.0) if self._pieces_left else None
        self._pieces_left -= 1
        self._keep(lines if lines is not None else self._output.rest())
        if lines is None:
            if self._not_kept:
                self._waiting.append(f"… and {self._not_kept} more lines")
            self._output.close()
            self._all_read = True

    def _keep(self, lines: Iterable[str]) -> None:
        for line in lines:
            if self._overdue_at is not None and len(self._waiting) >= _LINES_WAITING:
                self._not_kept += 1
            else:
                self._waiting.append(without_colors(line))

    def _hear(self) -> None:
        """One message of the keeper; it says nothing any more where it has been killed."""
        try:
            packet = self._control.recv(_MESSAGE_BYTES)
        except OSError:
            packet = b""
        message: dict[str, Any] = json.loads(packet) if packet else {"ended": self._bereft()}
        if "begun" in message:
            self._leader = message["begun"]
        if "failed" in message:
            self._failure = message["failed"]
        if "ended" not in message:
            return
        status, seconds, why = message["ended"]
        if status is not None and status < 0 and not why:
            why = f"ended by signal {-status}"
        self._gone = ProcessExit(status, seconds, why)
        with self._closing:
            self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it stays with what could not be ended
            self._keeper.wait(1.0)

    def _bereft(self) -> tuple[None, float, str]:
        """Ends what a keeper that has died can have left; how that ended."""
        took = time.monotonic() - self._began
        self._keeper.kill()
        status = self._keeper.wait()
        if not self._leader:
            return None, took, self._failure or f"not begun: its keeper ended with status {status}"
        why = self._failure or f"its keeper was ended from outside (status {status}), and it with it"
        left = _end_session(self._leader)
        return None, took, f"{why}; {keeper.told_of(left)}" if left else why


def _end_session(leader: int) -> list[keeper.Entry]:
    """Kills what is left of a test's session; what SIGKILL does not end."""
    until = time.monotonic() + keeper.KILL_SECONDS
    while True:
        left = [entry for entry in keeper.process_table() if entry.session == leader and entry.state != "Z"]
        if not left or time.monotonic() > until:
            return left
        for entry in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(entry.pid, signal.SIGKILL)
        time.sleep(0.02)
