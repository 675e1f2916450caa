"""SIGTERM and SIGHUP as an end in good order: a step under way is waited for, a recording is finished."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

TERMINAL_GONE = "the terminal has gone"
WORDS = {signal.SIGTERM: "gdrtop was terminated", signal.SIGHUP: TERMINAL_GONE}


class Hangups:
    """Hands these signals to the event loop, where nobody has ignored or taken them before.

    By Python's own handlers, not the loop's: those end with the loop, and a second signal while a step is
    waited for would kill. `at_once` is called in the handler itself: the loop may wait for the terminal.
    """

    def __init__(self, hear: Callable[[str], object], at_once: Callable[[], object]) -> None:
        self._hear = hear
        self._at_once = at_once
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: dict[int, Any] = {}

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on; does nothing outside of the main thread."""
        self._loop = loop
        for number in WORDS:
            if signal.getsignal(number) is signal.SIG_DFL:
                try:
                    self._before[number] = signal.signal(number, self._take)
                except ValueError:  # not the main thread
                    return

    def forget(self) -> None:
        """As it was before."""
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        del frame
        assert self._loop is not None
        self._at_once()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._hear, WORDS[signal.Signals(number)])
