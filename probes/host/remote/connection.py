"""An open connection to one node, by the messages of the collector there."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

from probes.base.text import printable
from probes.host.remote.collector import GREETING, THREADS, TIMED
from probes.host.remote.transport import (
    GARBLED,
    MOST_ANSWER_BYTES,
    MOST_ERRORS_BYTES,
    MOST_NOISE_BYTES,
    NOISY,
    SILENT,
    ConnectionFailed,
    Target,
    collector_source,
    pack,
    unpack,
    why_failed,
)

CONNECT_SECONDS = 15.0
ANSWER_SECONDS = 30.0  # of a whole round; its commands have limits of their own
_END_SECONDS = 1.0


class Connection:
    """An open connection; questions may come from several threads, and are asked in turn."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.rounds = 0
        self.sent_bytes = self.received_bytes = 0
        self._lock = threading.Lock()
        self._received = bytearray()
        self._errors = bytearray()
        self._is_greeted = False
        try:
            self._process = subprocess.Popen(
                target.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is gdrtop's
            )
        except OSError as error:
            raise ConnectionFailed(f"cannot run {printable(target.argv[0])}: {error.strerror}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._input = self._process.stdin
        os.set_blocking(self._input.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ, self._received)
        self._selector.register(self._process.stderr, selectors.EVENT_READ, self._errors)
        try:
            deadline = time.monotonic() + CONNECT_SECONDS
            self._send(collector_source(), deadline)
            self._skip_noise(deadline)
            self.greeting = self._message(deadline)
        except BaseException:
            self._end()
            raise

    def ask(self, questions: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """Return the answers to all of these questions, and the node's clocks.

        ConnectionFailed: there is no answer. The connection is closed then: a late answer would be taken for
        the next one.
        """
        limits = [question[1] for question in questions if question[0] in TIMED]
        longest = max(max(limits, default=0.0), sum(limits) / THREADS)
        with self._lock:
            self.rounds += 1
            deadline = time.monotonic() + ANSWER_SECONDS + longest
            try:
                self._send(pack({"ask": list(questions)}), deadline)
                return self._message(deadline)
            except BaseException:
                self._end()
                raise

    def close(self) -> None:
        """End the connection; the collector ends when its input does."""
        if not self._lock.acquire(blocking=False):  # a thread waits for an answer
            self._kill()
            if not self._lock.acquire(timeout=_END_SECONDS):
                return
        try:
            self._end()
        finally:
            self._lock.release()

    def _end(self) -> None:
        """End the transport, and close what leads to it; called by the thread that uses it."""
        self._selector.close()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # of another user, by sudo
                self._process.wait(_END_SECONDS)

    def _kill(self) -> None:
        """Kill the transport, and what it has started here."""
        if self._process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

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
        mark = f"\n{GREETING}\n".encode()
        while mark not in self._received:
            if self.received_bytes > MOST_NOISE_BYTES:  # of both streams
                raise ConnectionFailed(NOISY)
            self._receive(deadline)
        del self._received[: self._received.index(mark) + len(mark)]
        self._is_greeted = True

    def _message(self, deadline: float) -> dict[str, Any]:
        searched = 0  # bytes without a line end
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            self._receive(deadline)
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return unpack(line)

    def _receive(self, deadline: float) -> None:
        """Wait for more of either stream, or until the input takes more."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise ConnectionFailed(SILENT)
        for key, _ in self._selector.select(left):
            if key.data is None:  # the input
                continue
            part = os.read(key.fd, 1 << 18)
            if part:
                self.received_bytes += len(part)
                key.data.extend(part)
                del self._errors[:-MOST_ERRORS_BYTES]
                if len(self._received) > MOST_ANSWER_BYTES:
                    raise ConnectionFailed(GARBLED)
                continue
            self._selector.unregister(key.fileobj)
            if key.data is self._received:
                raise self._failure()

    def _failure(self) -> ConnectionFailed:
        """Return why the transport has ended, by what it printed."""
        deadline = time.monotonic() + _END_SECONDS
        for stream, kept in ((self._process.stderr, self._errors), (self._process.stdout, self._received)):
            while stream is not None and not stream.closed and time.monotonic() < deadline:
                with selectors.DefaultSelector() as selector:
                    selector.register(stream, selectors.EVENT_READ)
                    if not selector.select(max(0.0, deadline - time.monotonic())):
                        break
                part = os.read(stream.fileno(), 1 << 16)
                if not part:
                    break
                kept += part
                del kept[:-MOST_ERRORS_BYTES]
        noise = b"" if self._is_greeted else bytes(self._received)
        return ConnectionFailed(why_failed(bytes(self._errors), self.target, noise))
