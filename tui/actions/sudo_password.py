"""Let sudo ask for its password on the real terminal while the dashboard is suspended."""

from __future__ import annotations

import concurrent.futures
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

from textual.app import SuspendNotSupported

_POLL_SECONDS = 0.2


def wait_for_password(
    call: Callable[[Callable[[], object]], object], ask: Callable[[], bool], is_leaving: Callable[[], bool]
) -> bool:
    """Run `ask` in the screen's thread and wait for its answer; called in the run's thread."""
    answer: concurrent.futures.Future[bool] = concurrent.futures.Future()

    def asked() -> None:
        try:
            answer.set_result(ask())
        except Exception:  # the run goes on without a password, and says so
            answer.set_result(False)
            raise

    if is_leaving():
        return False
    call(asked)
    while True:
        try:
            return answer.result(_POLL_SECONDS)
        except concurrent.futures.TimeoutError:
            if is_leaving():
                return False


def ask_on_terminal(suspend: Callable[[], AbstractContextManager[object]], title: str) -> bool:
    """Suspend the dashboard and let sudo ask; return whether the password was accepted."""
    from tui.actions.local_commands import ask_for_password

    try:
        with suspend():
            # Ctrl-C ends sudo. A handler and not SIG_IGN, which sudo would inherit.
            before = signal.signal(signal.SIGINT, lambda number, frame: None)
            try:
                print(f"gdrtop: “{title}” needs root", file=sys.__stdout__, flush=True)
                return ask_for_password()
            finally:
                signal.signal(signal.SIGINT, before)
    except SuspendNotSupported:
        return False
