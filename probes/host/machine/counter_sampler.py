"""Reads a few counters many times a second, in a thread of its own, for as long as it is asked."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown

SHORTEST_SECONDS = 0.05  # between two readings
_UNASKED_SECONDS = 10.0  # after which the thread ends
_MOST_READINGS = 2000  # that were not taken yet
_RETRY_SECONDS = 1.0  # after a counter that could not be read
_DIGITS = 20


class CounterSampler:
    """The sum of some files with one integer each, over time; a read that hangs holds up no other."""

    def __init__(self, read: Callable[[str], Maybe[bytes]], paths: Sequence[str]) -> None:
        self._read, self._paths = read, tuple(paths)
        self._interval = SHORTEST_SECONDS
        self._asked_at = 0.0
        self._readings: deque[tuple[float, int]] = deque(maxlen=_MOST_READINGS)
        self._why: Unknown | None = None  # the newest reading failed
        self._thread: threading.Thread | None = None

    def readings(self, interval: float) -> Maybe[tuple[tuple[float, int], ...]]:
        """Return (seconds, sum) of each reading since the last call, and go on with this interval."""
        self._interval = max(SHORTEST_SECONDS, interval)
        self._asked_at = time.monotonic()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="counters", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no more threads available
                self._thread = None
                return Unknown(Reason.IO_ERROR, printable(self._paths[0]), "no thread could be started")
        new = []
        while self._readings:
            new.append(self._readings.popleft())
        return self._why if self._why is not None and not new else tuple(new)

    def _run(self) -> None:
        """Read until no call has come for some seconds."""
        next_at = time.monotonic()
        while next_at - self._asked_at < _UNASKED_SECONDS:
            reading = self._sum()
            if isinstance(reading, Unknown):
                self._why = reading
            else:
                self._why = None
                self._readings.append(reading)
            pause = self._interval if self._why is None else _RETRY_SECONDS
            now = time.monotonic()
            next_at = max(next_at + pause, now)
            time.sleep(next_at - now)

    def _sum(self) -> Maybe[tuple[float, int]]:
        """Read all files; the time is that of the middle."""
        began = time.monotonic()
        total = 0
        for path in self._paths:
            content = self._read(path)
            if isinstance(content, Unknown):
                return content
            digits = content.partition(b"@")[0].strip()  # telemetry of Slingshot NICs: 123@SECONDS
            if len(digits) > _DIGITS or not digits.isdigit():
                text = printable(content[:40].decode(errors="replace"))
                return Unknown(Reason.MALFORMED, printable(path), text)
            total += int(digits)
        return (began + time.monotonic()) / 2, total
