"""Has sudo ask for its password on the real terminal, while the dashboard stands aside."""

from __future__ import annotations

import concurrent.futures
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

from textual.app import SuspendNotSupported

_LOOK_SECONDS = 0.2


def wait_for_password(
    call: Callable[[Callable[[], object]], object], ask: Callable[[], bool], is_leaving: Callable[[], bool]
) -> bool:
    """From the run's thread: has `ask` done in the screen's thread, and waits for its answer."""
    answer: concurrent.futures.Future[bool] = concurrent.futures.Future()

    def asked() -> None:
        try:
            answer.set_result(ask())
        except Exception:  # whatever went wrong there, the run goes on without a password, and says so
            answer.set_result(False)
            raise

    if is_leaving():
        return False
    call(asked)
    while True:
        try:
            return answer.result(_LOOK_SECONDS)
        except concurrent.futures.TimeoutError:
            if is_leaving():
                return False


def ask_on_terminal(suspend: Callable[[], AbstractContextManager[object]], title: str) -> bool:
    """In the screen's thread: sudo asks, and the dashboard comes back; whether sudo was satisfied."""
    from tui.actions.runner import ask_for_password

    try:
        with suspend():
            # Ctrl-C is for sudo, which ends by it; a handler and not SIG_IGN, which sudo would inherit.
            before = signal.signal(signal.SIGINT, lambda number, frame: None)
            try:
                print(f"gdrtop: “{title}” needs root", file=sys.__stdout__, flush=True)
                return ask_for_password()
            finally:
                signal.signal(signal.SIGINT, before)
    except SuspendNotSupported:
        return False
