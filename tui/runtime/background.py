"""What threads hand to the screen's thread: answers, and events in batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

TELLING_SECONDS = 0.2  # what a run prints is shown so often; each time the console is repainted
E = TypeVar("E")
T = TypeVar("T")
Then = Callable[[T], object]
Failed = Callable[[str], object]
Call = Callable[[Callable[[], object]], object]
"""Has something done in the screen's thread, from any."""


def ask_in_thread(call: Call, ask: Callable[[], T], then: Then[T], failed: Failed) -> None:
    """Asks in a daemon thread; the answer, or what went wrong, is told in the screen's thread."""

    def work() -> None:
        try:
            answer = ask()
        except Exception as error:  # the screen must say so and live on
            told = f"{type(error).__name__}: {error}"
            with suppress(RuntimeError):  # the screen has just gone
                call(lambda: failed(told))
            return
        with suppress(RuntimeError):
            call(lambda: then(answer))

    threading.Thread(target=work, name="asking", daemon=True).start()


class Telling(Generic[E]):
    """Keeps a thread's events until the screen takes them; one call for as many as come together."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._hear: Callable[[], object] = lambda: None
        self._told: list[E] = []
        self._is_telling = False
        self._is_heard = True

    def begin(self, hear: Callable[[], object]) -> None:
        """A new run; `hear` is called in the screen's thread when there is something to take."""
        with self._lock:
            self._hear, self._told, self._is_telling = hear, [], False

    def tell(self, event: E) -> None:
        """From the thread."""
        with self._lock:
            self._told.append(event)
            if self._is_telling or not self._is_heard:
                return
            self._is_telling = True
        with suppress(RuntimeError):  # the screen has just gone
            self._call(self._hear)

    def take(self) -> list[E]:
        """What was told since; the screen is called again when there is more."""
        with self._lock:
            told, self._told, self._is_telling = self._told, [], False
        return told

    @property
    def waiting(self) -> int:
        """How many events nobody has taken yet."""
        return len(self._told)

    def hush(self) -> None:
        """The screen has gone: nobody is told any more."""
        self._is_heard = False


class Worker(Telling[E]):
    """Does one piece of work at a time in a daemon thread, and keeps what it tells until the screen takes it.

    `call` has something done in the screen's thread, from any.
    """

    def __init__(self, call: Call, name: str) -> None:
        super().__init__(call)
        self._name = name
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether something is under way."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, seconds: float) -> bool:
        """Waits for the end of what is under way; whether there is nothing any more."""
        if self._thread is not None:
            began = time.monotonic()
            while self._thread.is_alive() and time.monotonic() - began < seconds:
                self._thread.join(0.2)  # in pieces, so that signals are heard
        return not self.is_running

    def _await_last(self) -> None:
        """Before something new is begun: the end of the last was told a moment before it is there."""
        if self._thread is not None:
            self._thread.join(1.0)

    def _work(
        self, hear: Callable[[], object], work: Callable[[], object], failed: Callable[[str], object]
    ) -> None:
        """Works in a thread; `failed` tells the end that a fault leaves the screen without.

        `hear` is called in the screen's thread when there is something to take.
        """
        self.begin(hear)

        def run() -> None:
            try:
                work()
            except Exception as error:  # the screen must say so and live on
                failed(f"a fault of gdrtop: {type(error).__name__}: {error}")

        self._thread = threading.Thread(target=run, name=self._name, daemon=True)
        self._thread.start()
