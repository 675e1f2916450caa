"""Background threads whose answers and events arrive in the screen's thread.

They are daemon threads and not Textual's thread workers: those run in the event loop's executor, which the
interpreter joins at exit, so that one read that hangs would keep gdrtop from ending.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

DRAW_SECONDS = 0.2  # output of a run is drawn this often: each time, the console is repainted
E = TypeVar("E")
T = TypeVar("T")
Then = Callable[[T], object]
Failed = Callable[[str], object]
Call = Callable[[Callable[[], object]], object]
"""Run something in the screen's thread; may be called from any thread."""


def call_in_thread(call: Call, work: Callable[[], T], then: Then[T], failed: Failed) -> None:
    """Run `work` in a daemon thread, then `then` or `failed` in the screen's thread."""

    def run() -> None:
        try:
            answer = work()
        except Exception as error:  # the screen shows it and goes on
            message = f"{type(error).__name__}: {error}"
            with suppress(RuntimeError):  # the screen has just closed
                call(lambda: failed(message))
            return
        with suppress(RuntimeError):
            call(lambda: then(answer))

    threading.Thread(target=run, name="asking", daemon=True).start()


class BackgroundTask(Generic[E]):
    """One task at a time in a daemon thread, with its events until the screen takes them.

    There is one notification for each batch of events.
    """

    def __init__(self, call: Call, name: str) -> None:
        self._call, self._name = call, name
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._on_ready: Callable[[], object] = lambda: None
        self._events: list[E] = []
        self._is_notified = False
        self._is_muted = False

    def put(self, event: E) -> None:
        """Add an event; called in the background thread."""
        with self._lock:
            self._events.append(event)
            if self._is_notified or self._is_muted:
                return
            self._is_notified = True
        with suppress(RuntimeError):  # the screen has just closed
            self._call(self._on_ready)

    def drain(self) -> list[E]:
        """Return the events since the last call."""
        with self._lock:
            events, self._events, self._is_notified = self._events, [], False
        return events

    @property
    def waiting(self) -> int:
        """Return the number of events in the queue."""
        return len(self._events)

    def mute(self) -> None:
        """Stop notifying: the screen has closed."""
        self._is_muted = True

    @property
    def is_running(self) -> bool:
        """Return whether the thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, seconds: float) -> bool:
        """Wait for the task to end; return whether it has ended."""
        if self._thread is not None:
            began = time.monotonic()
            while self._thread.is_alive() and time.monotonic() - began < seconds:
                self._thread.join(0.2)  # in short steps, so that signal handlers run
        return not self.is_running

    def run_in_background(
        self, on_ready: Callable[[], object], work: Callable[[], object], failed: Failed
    ) -> None:
        """Run `work` in a thread, after the last one; report an unexpected exception with `failed`.

        `on_ready` is called in the screen's thread when there are events.
        """
        if self._thread is not None:
            self._thread.join(1.0)  # its end event comes a moment before the thread ends
        with self._lock:
            self._on_ready, self._events, self._is_notified = on_ready, [], False

        def run() -> None:
            try:
                work()
            except Exception as error:  # the screen shows it and goes on
                failed(f"internal error: {type(error).__name__}: {error}")

        self._thread = threading.Thread(target=run, name=self._name, daemon=True)
        self._thread.start()
