"""SIGINT, SIGTERM and SIGHUP end gdrtop in order: it waits for a running step and finishes a recording."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # text commands do without asyncio
    import asyncio
    from types import FrameType

# An app that has not left the screen by then is ended where it is.
LONGEST_EXIT_SECONDS = 1.0
TERMINAL_GONE = "the terminal is gone"
REASONS = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "gdrtop was terminated",
    signal.SIGHUP: TERMINAL_GONE,
}


class ExitSignals:
    """Pass SIGTERM and SIGHUP to the event loop, unless they are ignored or handled already.

    These are Python's handlers and not the loop's, which end with the loop: a second signal during the wait
    for a step would kill gdrtop. `at_once` runs in the handler, because the loop may be blocked by the
    terminal. `at_last` runs in a thread if `note_left` is not called in time: the loop may be busy with what
    came from the terminal.
    """

    def __init__(
        self,
        on_signal: Callable[[str], object],
        at_once: Callable[[], object],
        at_last: Callable[[str], object],
    ) -> None:
        self._on_signal, self._at_once, self._at_last = on_signal, at_once, at_last
        self._timer: threading.Timer | None = None
        self._has_left = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: dict[int, Any] = {}

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Install the handlers; do nothing outside the main thread."""
        self._loop = loop
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                try:
                    self._before[number] = signal.signal(number, self._handle)
                except ValueError:  # not the main thread
                    return

    def note_left(self) -> None:
        """Note that the screen is closing: what is left to do may take longer."""
        self._has_left = True
        if self._timer is not None:
            self._timer.cancel()

    def restore(self) -> None:
        """Restore the previous handlers; do nothing outside the main thread."""
        while threading.current_thread() is threading.main_thread() and self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        assert self._loop is not None
        self._at_once()
        why = REASONS[signal.Signals(number)]
        if self._timer is None and not self._has_left:
            self._timer = threading.Timer(LONGEST_EXIT_SECONDS, self._at_last, (why,))
            self._timer.daemon = True
            self._timer.start()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_signal, why)


@contextmanager
def signals_stop(
    stop: Callable[[str], object], abandon_step: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Call `stop` with the reason on each signal, and `abandon_step` from the second Ctrl-C on."""
    received: list[int] = []

    def handle(number: int, frame: object) -> None:
        del frame
        if received and number == signal.SIGINT:
            abandon_step()
        received.append(number)
        stop(REASONS[signal.Signals(number)])

    with handled_by(handle, [number for number in REASONS if signal.getsignal(number) != signal.SIG_IGN]):
        yield


@contextmanager
def handled_by(handler: Callable[..., object], numbers: Iterable[int]) -> Iterator[None]:
    """Handle these signals for a while."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
