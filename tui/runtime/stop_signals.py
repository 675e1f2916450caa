"""Ctrl-C, kill and a terminal that goes away, for what has to end in good order and not at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_WORDS = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "gdrtop was terminated",
    signal.SIGHUP: "the terminal has gone",
}


@contextmanager
def signals_stop(
    stop: Callable[[str], object], give_up: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Calls `stop` with a word for why, and from the second time on also `give_up` where it was Ctrl-C."""
    asked: list[int] = []

    def hear(number: int, frame: object) -> None:
        del frame
        if asked and number == signal.SIGINT:
            give_up()
        asked.append(number)
        stop(_WORDS[signal.Signals(number)])

    before = {one: signal.signal(one, hear) for one in _WORDS if signal.getsignal(one) != signal.SIG_IGN}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
