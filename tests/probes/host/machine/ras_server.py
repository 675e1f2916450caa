"""A fake RAS service on the loopback interface, which records what it receives."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

PATIENCE_SECONDS = 20.0  # a test that waits longer has failed


@dataclass
class Behavior:
    """What one connection does."""

    answer: bytes = b"report\n"
    greets: bool = True
    greeting: bytes = b"SERVER PROTOCOL 2\n"
    stays_open: bool = False  # after the answer, until the client closes
    is_endless: bool = False  # repeats the answer
    closes_at_once: bool = False


@dataclass
class FakeRas:
    """Connections in order behave as listed; the last behavior repeats."""

    behaviors: Sequence[Behavior]
    received: list[bytes] = field(default_factory=list)
    connections: int = 0
    most_at_once: int = 0
    half_closed: bool = False
    address: str = ""
    _open: int = 0
    _done: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, listener: socket.socket) -> None:
        """Accept until the test ends."""
        while not self._done.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                behavior = self.behaviors[min(self.connections, len(self.behaviors) - 1)]
                number = self.connections
                self.connections += 1
                self._open += 1
                self.most_at_once = max(self.most_at_once, self._open)
                self.received.append(b"")
            threading.Thread(target=self._talk, args=(connection, behavior, number), daemon=True).start()

    def _talk(self, connection: socket.socket, behavior: Behavior, number: int) -> None:
        connection.settimeout(PATIENCE_SECONDS)
        with connection:
            with suppress(OSError):
                if not behavior.closes_at_once:
                    self._answer(connection, behavior, number)
            with self._lock:  # before the client sees the end and connects again
                self._open -= 1

    def _answer(self, connection: socket.socket, behavior: Behavior, number: int) -> None:
        first = self._line(connection, number)
        if not behavior.greets:
            self._rest(connection, number)
            return
        if first.startswith(b"CLIENT PROTOCOL"):
            connection.sendall(behavior.greeting)
        self._line(connection, number)
        connection.sendall(behavior.answer)
        while behavior.is_endless:
            connection.sendall(behavior.answer)
        if behavior.stays_open:
            self._rest(connection, number)
            return
        # Whatever the client has sent after its command, or the end of its half of the connection.
        connection.setblocking(False)
        with suppress(BlockingIOError):
            more = connection.recv(4096)
            self.received[number] += more
            self.half_closed |= not more

    def _line(self, connection: socket.socket, number: int) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            byte = connection.recv(1)
            if not byte:
                break
            line += byte
        self.received[number] += line
        return line

    def _rest(self, connection: socket.socket, number: int) -> None:
        while more := connection.recv(4096):
            self.received[number] += more

    def stop(self) -> None:
        """Accept no more connections."""
        self._done.set()


@contextmanager
def ras_server(*behaviors: Behavior) -> Iterator[FakeRas]:
    """Serve on a free port of 127.0.0.1."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        fake = FakeRas(behaviors or (Behavior(),))
        fake.address = f"127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=fake.serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield fake
        finally:
            fake.stop()
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE_SECONDS)
