"""The process of a transport, such as ssh: it has a session of its own, and ends with all that is in it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

from probes.host.trusted_path import trusted_environment

END_SECONDS = 1.0  # from the end of its input to SIGKILL
INTERRUPT_SECONDS = 0.5  # of a wait for a thread: Python sees Ctrl-C only after a wait that it just begins


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Let Ctrl-C wait: while a process is started, KeyboardInterrupt would leave it running and unknown.

    A mask of signals would not do: Python raises it in the main thread whichever thread the signal reaches.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if noted:
            signal.raise_signal(signal.SIGINT)


def start_transport(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a transport with three pipes; OSError: it cannot be run. Ctrl-C is gdrtop's and not its."""
    process: subprocess.Popen[bytes] | None = None
    try:
        with interrupts_deferred():
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=trusted_environment(),
                start_new_session=True,
            )
    except KeyboardInterrupt:
        if process is not None:
            kill_session(process.pid)
        raise
    return process


def close_pipes(process: subprocess.Popen[bytes]) -> None:
    """Close what leads to a transport; only the thread that uses it may."""
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def kill_session(pid: int) -> None:
    """Kill a transport that has not been waited for, and what it has started here."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def wait_or_kill(processes: Iterable[subprocess.Popen[bytes]], seconds: float) -> None:
    """Wait for transports whose input has ended, and kill those that stay; `seconds` are for all together."""
    left = list(processes)
    try:
        left = _wait(left, seconds)
    finally:  # also when a second Ctrl-C ends the wait
        for process in left:
            if process.poll() is None:
                kill_session(process.pid)
    _wait(left, END_SECONDS)  # one of another user, by sudo, may stay


def _wait(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> list[subprocess.Popen[bytes]]:
    """Wait for processes, so many seconds together; return those that have not ended."""
    until = time.monotonic() + seconds
    left: list[subprocess.Popen[bytes]] = []
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            left.append(process)
    return left
