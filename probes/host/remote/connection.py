"""An open connection to one node: the process of its transport, and the messages of the collector there."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from probes.base.text import printable
from probes.host.remote import transport
from probes.host.remote.collector import GREETING, THREADS, TIMED
from probes.host.remote.transport import ConnectionFailed, Target
from probes.host.trusted_path import trusted_environment

T = TypeVar("T")
_MARK = f"\n{GREETING}\n".encode()

# The process of a transport, such as ssh: it has a session of its own, and ends with all that is in it.

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


CONNECT_SECONDS = 15.0
ANSWER_SECONDS = 30.0  # of a whole round; its commands have limits of their own
READING_SECONDS = 60.0  # of all rounds of a reading, and of connecting: the default of fleet.timeout


class Connections:
    """The connections of a command, which end together: none waits for another, or for one that hangs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: list[Connection] = []
        self.is_closed = False

    @contextmanager
    def starting(self, connection: Connection) -> Iterator[None]:
        """Note a connection whose transport is started here; ConnectionFailed: all have been closed."""
        with self._lock:
            if self.is_closed:
                raise ConnectionFailed("gdrtop has closed its connections")
            yield
            self._started = [*(each for each in self._started if not each.is_ended), connection]

    def close(self) -> None:
        """End all connections, and those that are still being opened; no other one can be opened."""
        with self._lock:
            self.is_closed = True
            started, self._started = self._started, []
        end_together(started)


def end_together(connections: Sequence[Connection]) -> None:
    """End connections; the collector of each ends when its input does."""
    for each in connections:
        each.end_input()
    wait_or_kill([each.process for each in connections], END_SECONDS)


class Connection:
    """An open connection; questions may come from several threads, and are asked in turn."""

    def __init__(
        self,
        target: Target,
        among: Connections | None = None,
        until: float = float("inf"),
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        """Connect, until this time of the monotonic clock; it ends with those that it is `among`.

        ConnectionFailed: the node does not answer.
        """
        self.target = target
        self.most_bytes = sys.maxsize  # that it may send
        self.rounds = 0
        self.sent_bytes = self.received_bytes = 0
        self.memory_bytes = 0  # that all messages took
        self._error_bytes = 0  # of this round
        self._lock = threading.Lock()
        self._received = bytearray()
        self._errors = bytearray()
        self._is_greeted = False
        with self._lock:
            try:
                with (among or Connections()).starting(self):
                    self.process = start_transport(target.argv)
            except OSError as error:
                raise ConnectionFailed(f"cannot run {printable(target.argv[0])}: {error.strerror}") from None
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            assert self.process.stderr is not None
            self._input = self.process.stdin
            os.set_blocking(self._input.fileno(), False)
            self._selector = selectors.DefaultSelector()
            self._selector.register(self.process.stdout, selectors.EVENT_READ, self._received)
            self._selector.register(self.process.stderr, selectors.EVENT_READ, self._errors)
            try:
                deadline = min(until, time.monotonic() + connect_seconds)
                self._send(transport.collector_source(), deadline)
                self._skip_noise(deadline)
                self.greeting = self._message(deadline)
            except BaseException:
                self._end()
                raise

    def ask(self, questions: Sequence[Sequence[Any]], until: float = float("inf")) -> dict[str, Any]:
        """Return the answers to all of these questions, and the node's clocks.

        `until`: when the reading must have ended, on the monotonic clock.

        ConnectionFailed: there is no answer. The connection is closed then: a late answer would be taken for
        the next one.
        """
        limits = [question[1] for question in questions if question[0] in TIMED]
        longest = max(max(limits, default=0.0), sum(limits) / THREADS)
        deadline = min(until, time.monotonic() + ANSWER_SECONDS + longest)
        return self._exchanged(transport.pack({"ask": list(questions)}), deadline, self._message)

    def exchange(self, line: bytes, until: float) -> bytes:
        """Return the line that answers a line of questions, both packed; otherwise as `ask`."""
        return self._exchanged(line, until, self._line)

    def _exchanged(self, line: bytes, deadline: float, read: Callable[[float], T]) -> T:
        with self._lock:
            self.rounds += 1
            self._error_bytes = 0
            try:
                if b"\n" in self._received:  # a line that was not asked
                    raise ConnectionFailed(transport.GARBLED)
                self._send(line, deadline)
                return read(deadline)
            except BaseException:
                self._end()
                raise

    @property
    def is_ended(self) -> bool:
        """Return whether its transport has ended."""
        return self.process.poll() is not None

    def close(self) -> None:
        """End the connection."""
        end_together([self])

    def end_input(self) -> None:
        """Let the transport end, and do not wait."""
        if not self._lock.acquire(blocking=False):  # a thread waits for an answer
            if not self.is_ended:
                kill_session(self.process.pid)
            return
        try:
            self._close_files()
        finally:
            self._lock.release()

    def _end(self) -> None:
        """End the transport; called by the thread that uses it."""
        self._close_files()
        wait_or_kill([self.process], END_SECONDS)

    def _close_files(self) -> None:
        self._selector.close()
        close_pipes(self.process)

    def _send(self, content: bytes, deadline: float) -> None:
        self.sent_bytes += len(content)
        view = memoryview(content)
        try:
            while view:
                written = self._input.write(view)
                view = view[written or 0 :]
                if not view:
                    return
                # Full: a node that reads nothing may still print why.
                self._selector.register(self._input, selectors.EVENT_WRITE)
                try:
                    self._receive(deadline)
                finally:
                    self._selector.unregister(self._input)
        except (OSError, ValueError):  # ValueError: closed
            raise self._failure() from None

    def _skip_noise(self, deadline: float) -> None:
        while _MARK not in self._received:
            if self.received_bytes > transport.MOST_NOISE_BYTES:  # of both streams
                raise ConnectionFailed(transport.NOISY)
            self._receive(deadline)
        del self._received[: self._received.index(_MARK) + len(_MARK)]
        self._is_greeted = True

    def _message(self, deadline: float) -> dict[str, Any]:
        message, size = transport.unpack(self._line(deadline))
        self.memory_bytes += size
        return message

    def _line(self, deadline: float) -> bytes:
        searched = 0  # bytes without a line end
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            self._receive(deadline)
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    def _receive(self, deadline: float) -> None:
        """Wait for more of either stream, or until the input takes more."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise ConnectionFailed(transport.SILENT)
        for key, _ in self._selector.select(left):
            if key.data is None:  # the input
                continue
            part = os.read(key.fd, 1 << 18)
            if part:
                self.received_bytes += len(part)
                key.data.extend(part)
                self._error_bytes += len(part) * (key.data is self._errors)
                del self._errors[: -transport.MOST_ERRORS_BYTES]
                if self._error_bytes > transport.MOST_NOISE_BYTES:
                    raise ConnectionFailed(transport.NOISY)
                if len(self._received) > transport.MOST_LINE_BYTES or self.received_bytes > self.most_bytes:
                    raise ConnectionFailed(transport.TOO_MUCH)
                continue
            self._selector.unregister(key.fileobj)
            if key.data is self._received:
                raise self._failure()

    def _failure(self) -> ConnectionFailed:
        """Return why the transport has ended, by what it printed."""
        deadline = time.monotonic() + END_SECONDS
        for stream, kept in ((self.process.stderr, self._errors), (self.process.stdout, self._received)):
            while stream is not None and not stream.closed and time.monotonic() < deadline:
                with selectors.DefaultSelector() as selector:
                    selector.register(stream, selectors.EVENT_READ)
                    if not selector.select(max(0.0, deadline - time.monotonic())):
                        break
                part = os.read(stream.fileno(), 1 << 16)
                if not part:
                    break
                kept += part
                del kept[: -transport.MOST_ERRORS_BYTES]
        noise = b"" if self._is_greeted or _MARK in self._received else bytes(self._received)
        return ConnectionFailed(transport.why_failed(bytes(self._errors), self.target, noise))
