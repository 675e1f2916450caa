"""The client of NCCL's RAS service: one short connection at a time, to this host only.

Jobs of one user share a port, and the kernel deals out connections, also to a process that is stopped and
never answers: without the server's greeting, the client connects again. After STATUS it sends nothing and
does not half-close, because RAS would poll the socket without pause until its answer is out.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial

from probes.base.text import printable, printable_lines
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.ras import MAX_EVENTS, MONITOR, QUESTIONS, RasAddress, parse_addresses

GREETING_SECONDS = 2.0
TRIES = 5
MAX_BYTES = 1 << 20
MAX_LINES = 20_000
_MAX_FIRST_LINE = 1024
_MAX_EVENT_CHARACTERS = 512
MAX_KEPT_EVENTS = 5000  # that were not taken yet
_JOIN_SECONDS = 1.0
_one_connection = threading.Lock()


class _Failed(Exception):
    """The question has no answer, and why."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


class _Silent(Exception):
    """The process behind this connection sends no greeting; another one may."""


class _Connection:
    """A connection after the greeting."""

    def __init__(self, address: RasAddress, greeting_seconds: float) -> None:
        deadline = time.monotonic() + greeting_seconds
        family = socket.AF_INET6 if ":" in address.ip else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.rest = b""
        try:
            self.socket.settimeout(greeting_seconds)
            self.socket.connect(address)
            self.socket.sendall(b"CLIENT PROTOCOL 2\n")
            greeting = self.line(deadline)
            if not greeting.startswith(b"SERVER PROTOCOL "):
                raise _Failed(Reason.MALFORMED, "the program listening there is not NCCL's RAS service")
        except BaseException as error:
            self.socket.close()
            if isinstance(error, TimeoutError | ConnectionResetError | EOFError):
                raise _Silent from None
            raise

    def send(self, command: str) -> None:
        """Send the command; nothing may follow it."""
        self.socket.sendall(f"{command}\n".encode("ascii"))

    def receive(self, deadline: float) -> bytes:
        """Return the next bytes; b"" at the end of the answer. TimeoutError after the deadline."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.socket.settimeout(left)
        return self.socket.recv(1 << 16)

    def line(self, deadline: float) -> bytes:
        """Return one short line; EOFError if the connection ends before."""
        while b"\n" not in self.rest:
            if len(self.rest) > _MAX_FIRST_LINE:
                raise _Failed(Reason.MALFORMED, "the first line of the response is too long")
            received = self.receive(deadline)
            if not received:
                raise EOFError
            self.rest += received
        line, _, self.rest = self.rest.partition(b"\n")
        return line.rstrip(b"\r")


def ask(
    address: str, command: str, seconds: float, greeting_seconds: float = GREETING_SECONDS, tries: int = TRIES
) -> Maybe[str]:
    """Return the answer to one of QUESTIONS, within `seconds` after the greeting.

    At most MAX_BYTES and MAX_LINES; an answer that ends in the middle is returned as far as it came.
    """
    if command not in QUESTIONS:
        raise ValueError(f"gdrtop does not send {command!r}")
    if not _one_connection.acquire(blocking=False):
        why = "another connection to RAS is open; stop following RAS events first"
        return _unknown(address, _Failed(Reason.TIMED_OUT, why))
    try:
        connection = _connect(address, greeting_seconds, tries)
        with connection.socket:
            connection.send(command)
            return _answer(connection, time.monotonic() + seconds)
    except _Failed as failed:
        return _unknown(address, failed)
    except TimeoutError:
        return _unknown(address, _Failed(Reason.TIMED_OUT, f"no complete response within {seconds:g} s"))
    except OSError as error:
        return _unknown(address, _Failed(Reason.IO_ERROR, error.strerror or "connection failed"))
    finally:
        _one_connection.release()


def _connect(address: str, greeting_seconds: float, tries: int) -> _Connection:
    found = parse_addresses(address)
    if len(found) != 1:
        raise _Failed(Reason.MALFORMED, "gdrtop queries only this host's loopback addresses")
    for _ in range(tries):
        try:
            return _Connection(found[0], greeting_seconds)
        except _Silent:
            continue
        except ConnectionRefusedError:
            raise _Failed(Reason.NOT_THERE, "nothing is listening there") from None
    times = f"{tries} times" if tries > 1 else "once"
    raise _Failed(Reason.TIMED_OUT, f"connected {times}, but got no RAS greeting; the process may be stopped")


def _answer(connection: _Connection, deadline: float) -> Maybe[str]:
    pieces = [connection.rest]
    size, lines = len(connection.rest), connection.rest.count(b"\n")
    while True:
        received = connection.receive(deadline)
        if not received:
            break
        pieces.append(received)
        size, lines = size + len(received), lines + received.count(b"\n")
        if size > MAX_BYTES or lines > MAX_LINES:
            raise _Failed(Reason.MALFORMED, f"more than {MAX_BYTES >> 20} MiB or {MAX_LINES} lines")
        if b"".join(pieces[:2]).startswith((b"ERROR:", b"BUSY:")):  # RAS leaves the connection open
            break
    text = printable_lines(b"".join(pieces).decode("utf-8", "replace").replace("\r\n", "\n"))
    if text.startswith(("ERROR:", "BUSY:")):
        raise _Failed(Reason.DRIVER_ERROR, printable(text.partition("\n")[0], 200))
    if not text.strip():
        raise _Failed(Reason.IO_ERROR, "the connection closed without a response")
    return text


def _unknown(address: str, failed: _Failed) -> Unknown:
    return Unknown(failed.reason, f"RAS at {printable(address, 80)}", failed.detail)


class RasMonitor:
    """A connection on which a job sends its RAS events, until `close`.

    A job keeps what is not read in its memory without a limit, so a thread reads as soon as something comes,
    however seldom `read` is called. What is not taken is bounded here; the oldest events are dropped.
    """

    def __init__(self, address: str, greeting_seconds: float = GREETING_SECONDS, tries: int = TRIES) -> None:
        self.address = address
        self._greeting_seconds, self._tries = greeting_seconds, tries
        self._connection: _Connection | None = None
        self._lines: deque[bytes] = deque(maxlen=MAX_KEPT_EVENTS)
        self._ended: Unknown | None = None
        self._reader: threading.Thread | None = None
        self._lock = threading.Lock()

    def read(self) -> Maybe[tuple[str, ...]]:
        """Return the events since the last call, at most MAX_EVENTS; the first call subscribes."""
        if self._reader is None and self._ended is None:
            try:
                self._open()
            except _Failed as failed:
                self._end(failed)
            except EOFError:
                self._end(_Failed(Reason.NOT_THERE, "the job has closed the connection"))
            except TimeoutError:
                self._end(_Failed(Reason.TIMED_OUT, "no response to MONITOR"))
            except OSError as error:
                self._end(_Failed(Reason.IO_ERROR, error.strerror or "connection failed"))
        ended = self._ended  # before the lines: what came before the end is returned first
        lines = [self._lines.popleft() for _ in range(min(len(self._lines), MAX_EVENTS))]
        if not lines and ended is not None:
            return ended
        texts = (printable(line.decode("utf-8", "replace"), _MAX_EVENT_CHARACTERS) for line in lines)
        return tuple(text.strip() for text in texts if text.strip())

    def close(self) -> None:
        """Read what has arrived, and close the connection."""
        connection, reader = self._connection, self._reader
        if connection is not None:
            with suppress(OSError):  # the job may have closed it
                connection.socket.shutdown(socket.SHUT_RDWR)
        if reader is not None:
            reader.join(_JOIN_SECONDS)
        self._release()

    def _end(self, failed: _Failed) -> None:
        self._ended = _unknown(self.address, failed)
        self._release()

    def _release(self) -> None:
        """Close the socket, once."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.socket.close()
            _one_connection.release()

    def _open(self) -> None:
        if not _one_connection.acquire(blocking=False):
            raise _Failed(Reason.TIMED_OUT, "another connection to RAS is open")
        try:
            connection = _connect(self.address, self._greeting_seconds, self._tries)
        except BaseException:
            _one_connection.release()
            raise
        self._connection = connection  # from here on, `close` ends it
        connection.send(MONITOR)
        reply = connection.line(time.monotonic() + self._greeting_seconds)
        if reply != b"OK":
            text = printable(reply.decode("utf-8", "replace"), 200)
            raise _Failed(Reason.NOT_THERE, f"this NCCL has no MONITOR ({text})")
        connection.socket.settimeout(None)
        drain = partial(self._drain, connection)
        self._reader = threading.Thread(target=drain, name="RAS events", daemon=True)
        self._reader.start()

    def _drain(self, connection: _Connection) -> None:
        """Take what the job sends until the connection ends."""
        ended = _Failed(Reason.NOT_THERE, "the job has closed the connection")
        rest = connection.rest
        try:
            while True:
                *lines, rest = rest.split(b"\n")
                self._lines.extend(line[:_MAX_FIRST_LINE] for line in lines)
                if len(rest) > _MAX_FIRST_LINE * 4:
                    ended = _Failed(Reason.MALFORMED, "an event is too long")
                    break
                received = connection.socket.recv(1 << 16)
                if not received:
                    break
                rest += received
        except OSError as error:
            ended = _Failed(Reason.IO_ERROR, error.strerror or "connection failed")
        self._end(ended)
