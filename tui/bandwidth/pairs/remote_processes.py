"""Starts the processes of tests on another node, and stops them.

The first start opens a connection, which all processes of the node share; a program there (node_server.py)
starts them. With one connection for each, eight rails would come close to the ten that an sshd accepts at
once (MaxStartups). No thread is needed: whoever asks for lines reads what has come for all.
"""

from __future__ import annotations

import codecs
import json
import os
import select
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from probes.base.text import printable
from probes.host.remote import collector
from probes.host.remote.connection import (
    CONNECT_SECONDS,
    END_SECONDS,
    close_pipes,
    start_transport,
    wait_or_kill,
)
from probes.host.remote.transport import (
    GARBLED,
    LONGEST_SECONDS,
    MOST_ERRORS_BYTES,
    MOST_NOISE_BYTES,
    NOISY,
    SILENT,
    Target,
    program,
    why_failed,
)
from tui.bandwidth import supervisor
from tui.bandwidth.pairs import node_server
from tui.bandwidth.pairs.pairs_runner import UNCONFIRMED
from tui.bandwidth.processes import (
    LINE_LIMIT,
    LINES_WAITING,
    OVERDUE_SECONDS,
    NotStarted,
    ProcessExit,
    ToolProcess,
    process_exit,
)
from tui.terminal.program_output import LineSplitter, without_colors

_PIECE_BYTES = 1 << 16
_MOST_LINE_BYTES = 1 << 18
_ERRORS_SECONDS = 1.0  # from the end of its output to what the transport prints about it
_POLL_SECONDS = 0.2
_CLOSED = "closed"


@cache
def server_source() -> bytes:
    """Return the compressed program."""
    start = f"from {node_server.__name__} import main\nmain({LONGEST_SECONDS})"
    return program(start, collector, supervisor, node_server)


class RemoteNodeProcesses:
    """NodeProcesses of a node behind a connection; nothing is started there before the first `start`."""

    def __init__(self, target: Target, grace_seconds: float = supervisor.GRACE_SECONDS) -> None:
        """`grace_seconds` pass between SIGTERM and SIGKILL."""
        self._target, self._grace_seconds = target, grace_seconds
        self._connection: _Connection | None = None

    def start(self, argv: Sequence[str], seconds: float) -> ToolProcess:
        """Start a program of the node's trusted path; connect again if the connection was lost."""
        if self._connection is None or not self._connection.is_open():
            try:
                self._connection = _Connection(self._target)
            except OSError as error:
                transport = printable(self._target.transport[0])
                return NotStarted(f"{self._target.host}: cannot run {transport}: {error.strerror}")
        order = {"argv": list(argv), "seconds": seconds, "grace_seconds": self._grace_seconds}
        return self._connection.start(order)

    def close(self) -> None:
        """End all processes that still run on the node, and the connection."""
        if self._connection is not None:
            self._connection.close()


class _Connection:
    """The program on the node; the thread that holds the lock reads for all processes."""

    def __init__(self, target: Target) -> None:
        """Start to connect; OSError: the transport cannot be run."""
        self.target = target
        self.lost = ""
        """Why it is of no more use."""
        self.lock = threading.RLock()
        self._transport = start_transport(target.python(len(server_source())))
        assert self._transport.stdin is not None
        assert self._transport.stdout is not None
        assert self._transport.stderr is not None
        self._input = self._transport.stdin.fileno()
        self._output = self._transport.stdout.fileno()
        self._errors = self._transport.stderr.fileno()
        os.set_blocking(self._input, False)
        self._began = time.monotonic()
        self._output_ended_at: float | None = None
        self._is_greeted = False
        self._to_send = bytearray(server_source())
        self._orders = bytearray()  # that wait for the greeting: until then, Python reads the source
        self._received = bytearray()
        self._printed_errors = bytearray()
        self._processes: dict[int, _RemoteProcess] = {}
        self._count = 0

    def is_open(self) -> bool:
        with self.lock:
            self.read(0.0)
            return not self.lost and self._output_ended_at is None

    def start(self, order: dict[str, Any]) -> _RemoteProcess:
        with self.lock:
            self._count += 1
            process = _RemoteProcess(self, self._count, order["seconds"])
            self._processes[self._count] = process
            self.send({"start": self._count, **order})
            self.read(0.0)
            return process

    def send(self, order: dict[str, Any]) -> None:
        with self.lock:
            (self._to_send if self._is_greeted else self._orders).extend(json.dumps(order).encode() + b"\n")

    def read(self, seconds: float) -> None:
        """Handle what has come, and send what waits; wait up to so many seconds for something to come."""
        if self.lost:
            return
        poller = select.poll()
        if self._output_ended_at is None:
            poller.register(self._output, select.POLLIN)
        if self._errors >= 0:
            poller.register(self._errors, select.POLLIN)
        if self._to_send:
            poller.register(self._input, select.POLLOUT)
        ready = {descriptor for descriptor, _ in poller.poll(min(seconds, _POLL_SECONDS) * 1000.0)}
        if self._input in ready:
            try:
                del self._to_send[: os.write(self._input, self._to_send[:_PIECE_BYTES])]
            except OSError:  # its output will show why
                self._to_send.clear()
        if self._errors in ready:
            piece = os.read(self._errors, _PIECE_BYTES)
            self._printed_errors += piece
            del self._printed_errors[:-MOST_ERRORS_BYTES]
            if not piece:
                self._errors = -1
        if self._output in ready:
            self._receive(os.read(self._output, _PIECE_BYTES))
        now = time.monotonic()
        if self._output_ended_at is not None:
            if self._errors < 0 or now - self._output_ended_at > _ERRORS_SECONDS:
                self.lose(why_failed(bytes(self._printed_errors), self.target))
        elif not self._is_greeted and now - self._began > CONNECT_SECONDS:
            self.lose(SILENT)

    def _receive(self, piece: bytes | bytearray) -> None:
        if not piece:
            self._output_ended_at = time.monotonic()
            return
        self._received += piece
        if not self._is_greeted:
            mark = f"\n{node_server.GREETING}\n".encode()
            _, found, rest = self._received.partition(mark)
            if not found:
                if len(self._received) > MOST_NOISE_BYTES:
                    self.lose(NOISY)
                return
            self._is_greeted = True
            self._received, piece = rest, rest
            self._to_send += self._orders
        if b"\n" in piece:
            *lines, self._received = self._received.split(b"\n")
            for line in lines:
                self._handle(line)
        if len(self._received) > _MOST_LINE_BYTES:
            self.lose(GARBLED)

    def _handle(self, line: bytearray) -> None:
        try:
            report = json.loads(line)
        except (ValueError, RecursionError):
            report = None
        match report:
            case {"process": int(number), "output": str(text)}:
                if number in self._processes:
                    self._processes[number].add_output(text.encode("latin-1", "replace"))
            case {
                "process": int(number),
                "ended": [int() | None as status, int() | float() as seconds, str(why), cpu_seconds],
            } if cpu_seconds is None or isinstance(cpu_seconds, int | float):
                if number in self._processes:
                    ended = process_exit(status, seconds, printable(why)[:400], cpu_seconds)
                    self._processes.pop(number).set_end(ended)
            case _:
                self.lose(GARBLED)

    def lose(self, why: str) -> None:
        """Give it up: the node stops what still runs there, because its input ends."""
        with self.lock:
            if self.lost:
                return
            self.lost = why
            for process in self._processes.values():
                process.set_end(ProcessExit(None, time.monotonic() - process.began, self._end_of(process)))
            self._processes.clear()
            close_pipes(self._transport)
        wait_or_kill([self._transport], END_SECONDS if why == _CLOSED else 0.0)

    def _end_of(self, process: _RemoteProcess) -> str:
        host = self.target.host
        if not self._is_greeted:
            return f"not started on {host}: {self.lost}"
        limit = f"it ends after {process.time_limit_s:.0f} s by its own time limit"
        return f"lost the connection to {host} ({self.lost}): {UNCONFIRMED}; {limit}"

    def lose_unless_greeted(self) -> None:
        """Do not wait for a node that has not answered yet: nothing was ordered there, so nothing runs."""
        if not self._is_greeted:
            self.lose("it was stopped before the node answered")

    def close(self) -> None:
        with self.lock:
            running = list(self._processes.values())
        for process in running:
            process.order_end()
        for process in running:
            process.end()
        self.lose(_CLOSED)


class _RemoteProcess:
    def __init__(self, connection: _Connection, number: int, time_limit_s: float) -> None:
        self._connection, self._number, self.time_limit_s = connection, number, time_limit_s
        self.began = time.monotonic()
        self._splitter = LineSplitter(codecs.getincrementaldecoder("utf-8")("replace"), LINE_LIMIT)
        self._waiting: deque[str] = deque()
        self._skipped = 0
        self._exit: ProcessExit | None = None
        self._overdue_at: float | None = None  # set while it is being stopped

    def lines(self, seconds: float) -> list[str]:
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            with self._connection.lock:
                if not self._waiting and self._exit is None:
                    self._connection.read(max(0.0, left))
                if self._waiting or self._exit is not None or left <= 0:
                    lines = list(self._waiting)
                    self._waiting.clear()
                    return lines

    @property
    def ended(self) -> ProcessExit | None:
        return None if self._waiting else self._exit

    def order_end(self) -> None:
        """Have it stopped, and do not wait."""
        if self._overdue_at is None and self._exit is None:
            self._overdue_at = time.monotonic() + OVERDUE_SECONDS
            self._connection.send({"end": self._number})

    def end(self) -> None:
        self._connection.lose_unless_greeted()
        self.order_end()
        while self._exit is None:
            if time.monotonic() > (self._overdue_at or 0.0):
                self._connection.lose(SILENT)
            with self._connection.lock:
                if self._exit is None:
                    self._connection.read(_POLL_SECONDS)

    # By the connection, which holds its lock

    def add_output(self, output: bytes) -> None:
        """Add what it has printed; beyond the limit, lines are only counted."""
        self._add(self._splitter.feed(output))

    def set_end(self, end: ProcessExit) -> None:
        """Note how it has ended; no more output follows."""
        self._add(self._splitter.rest())
        if self._skipped:
            self._waiting.append(f"… and {self._skipped} more lines")
        self._exit = end

    def _add(self, lines: Iterable[str]) -> None:
        for line in lines:
            if len(self._waiting) >= LINES_WAITING:
                self._skipped += 1
            else:
                self._waiting.append(without_colors(line))
