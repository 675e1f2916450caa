"""Read a fleet in a thread, one reading at a time; the reader outlives the screens that show it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from probes.base.frozen import frozen
from probes.fleet.compare import Fleet, Unanswered, compare
from probes.fleet.summary import NodeSummary

Progress = Callable[[int, int], None]
"""Takes how many nodes have been read, and how many there are."""
Found = Callable[[NodeSummary], object]
"""Takes a node as soon as it has answered."""
Read = Callable[[Progress, Found], tuple[tuple[NodeSummary, ...], tuple[Unanswered, ...]]]
"""Read the whole fleet."""


@frozen
class FleetReading:
    """What a reading found, or why it failed."""

    fleet: Fleet | None
    at: float  # seconds since 1970, of its end
    failure: str = ""


class FleetReader:
    """Reads on request. A daemon thread, so that quitting does not wait for a node that hangs."""

    def __init__(self, read: Read, clock: Callable[[], float] = time.time) -> None:
        self._read, self._clock = read, clock
        self._lock = threading.Lock()
        self._notify: Callable[[], object] = lambda: None
        self._readings: deque[FleetReading] = deque()  # that have ended, and were not taken
        self._found: list[NodeSummary] = []
        self.is_reading = False
        self.progress = (0, 0)  # how many nodes the running reading has read, and how many there are
        self._answered_at: float | None = None
        self._thread: threading.Thread | None = None

    @property
    def seconds_since(self) -> float | None:
        """The seconds since the last answer of the newest reading; None before the first reading.

        A node that hangs keeps a reading from ending, but gives no other node anything to do.
        """
        return None if self._answered_at is None else time.monotonic() - self._answered_at

    def attach(self, notify: Callable[[], object]) -> None:
        """From now on, call `notify` in the reader's thread when there is something new."""
        self._notify = notify

    def detach(self) -> None:
        """Notify no screen: it has closed. A running reading is kept for the next one."""
        self._notify = lambda: None

    def start(self) -> None:
        """Begin a reading, unless one is running."""
        with self._lock:
            if self.is_reading:
                return
            self.is_reading, self.progress = True, (0, 0)
            self._answered_at = None
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait for the end of a running reading."""
        if self._thread is not None:
            self._thread.join(seconds)

    def take(self) -> FleetReading | None:
        """Return the oldest reading that was not taken before; the next one is compared to it."""
        with self._lock:
            return self._readings.popleft() if self._readings else None

    def take_found(self) -> list[NodeSummary]:
        """Return the nodes that have answered since the last call, in a reading that still runs."""
        with self._lock:
            found, self._found = self._found, []
        return found

    def _run(self) -> None:
        try:
            summaries, unanswered = self._read(self._note_progress, self._note_found)
            reading = FleetReading(compare(summaries, unanswered), self._clock())
        except Exception as error:  # the screen shows it and goes on
            reading = FleetReading(None, self._clock(), f"{type(error).__name__}: {error}")
        with self._lock:
            self._readings.append(reading)
            self.is_reading, self._found = False, []
            self._answered_at = self._answered_at or time.monotonic()
        self._report()

    def _note_found(self, summary: NodeSummary) -> None:
        with self._lock:
            self._found.append(summary)
            self._answered_at = time.monotonic()
        self._report()

    def _note_progress(self, done: int, total: int) -> None:
        if (done, total) != self.progress:
            self.progress = done, total
            self._report()

    def _report(self) -> None:
        with suppress(RuntimeError):  # the screen has just closed
            self._notify()
