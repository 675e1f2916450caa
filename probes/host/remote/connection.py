"""An open connection to one node, by the messages of the collector there."""

from __future__ import annotations

import os
import selectors
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

from probes.base.text import printable
from probes.host.remote.collector import GREETING, TIMED
from probes.host.remote.transport import (
    GARBLED,
    MOST_ANSWER_BYTES,
    ConnectionFailed,
    Target,
    collector_source,
    pack,
    unpack,
    why_failed,
)

CONNECT_SECONDS = 15.0
ANSWER_SECONDS = 30.0  # of a whole round; its commands have limits of their own
MOST_NOISE_BYTES = 1 << 16  # what shells and banners print before the collector greets
_MOST_ERRORS_BYTES = 4096


class Connection:
    """An open connection; questions may come from several threads, and are asked in turn."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.rounds = 0
        self.sent_bytes = self.received_bytes = 0
        self._lock = threading.Lock()
        self._received = bytearray()
        self._errors = bytearray()
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
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ, self._received)
        self._selector.register(self._process.stderr, selectors.EVENT_READ, self._errors)
        try:
            self._send(collector_source())
            self._skip_noise()
            self.greeting = self._message(CONNECT_SECONDS)
        except BaseException:
            self.close()
            raise

    def ask(self, questions: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """Return the answers to all of these questions, and the node's clocks."""
        longest = max((question[1] for question in questions if question[0] in TIMED), default=0.0)
        with self._lock:
            self.rounds += 1
            self._send(pack({"ask": list(questions)}))
            return self._message(ANSWER_SECONDS + longest)

    def close(self) -> None:
        """End the connection; the collector ends when its input does."""
        self._selector.close()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, content: bytes) -> None:
        assert self._process.stdin is not None
        self.sent_bytes += len(content)
        view = memoryview(content)
        try:
            while view:
                view = view[self._process.stdin.write(view) or 0 :]
        except (OSError, ValueError):  # ValueError: closed
            raise self._failure() from None

    def _skip_noise(self) -> None:
        mark = f"\n{GREETING}\n".encode()
        deadline = time.monotonic() + CONNECT_SECONDS
        while mark not in self._received:
            if len(self._received) > MOST_NOISE_BYTES:
                raise ConnectionFailed("it prints something else than gdrtop's answers")
            self._receive(deadline)
        del self._received[: self._received.index(mark) + len(mark)]

    def _message(self, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        searched = 0  # bytes without a line end
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            if searched > MOST_ANSWER_BYTES:
                raise ConnectionFailed(GARBLED)
            self._receive(deadline)
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return unpack(line)

    def _receive(self, deadline: float) -> None:
        """Wait for more of either stream."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise ConnectionFailed("it does not answer")
        try:
            ready = self._selector.select(left)
        except (OSError, ValueError, RuntimeError):  # closed by another thread
            raise ConnectionFailed("the connection is closed") from None
        for key, _ in ready:
            part = os.read(key.fd, 1 << 18)
            if part:
                self.received_bytes += len(part)
                key.data.extend(part)
                del self._errors[:-_MOST_ERRORS_BYTES]
                continue
            self._selector.unregister(key.fileobj)
            if key.data is self._received:
                raise self._failure()

    def _failure(self) -> ConnectionFailed:
        """Return why the transport has ended, by what it printed."""
        stderr = self._process.stderr
        deadline = time.monotonic() + 1.0
        while stderr is not None and not stderr.closed:
            with selectors.DefaultSelector() as selector:
                selector.register(stderr, selectors.EVENT_READ)
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    break
            part = os.read(stderr.fileno(), 1 << 16)
            if not part:
                break
            self._errors += part
            del self._errors[:-_MOST_ERRORS_BYTES]
        return ConnectionFailed(why_failed(self._errors.decode("utf-8", "replace"), self.target))
