"""Quit in order: ask if something is running, stop it, and wait for what must not be cut short."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tui.controllers.context import AppContext
    from tui.runtime.signals import ExitSignals


class QuitController:
    """Quit by key, by signal, and when the terminal goes away."""

    def __init__(self, context: AppContext, signals: ExitSignals) -> None:
        self._context, self._app, self._signals = context, context.app, signals
        self.has_hung_up = False  # by a signal, or because the terminal is gone

    def quit(self) -> None:
        """Quit; ask first if something is running."""
        active = self._context.active
        if active is None:
            self._leave()
            return

        self._context.ask_to_stop(
            f"{active.name} is running. Stop it and quit gdrtop?",
            "Stop it, then quit",
            self._leave,
            "Stop it, and stay in gdrtop",
            self._cancel,
        )

    def _cancel(self) -> None:
        active = self._context.active
        if active is not None:
            active.cancel()

    def _leave(self) -> None:
        active = self._context.active
        if active is None:
            self._app.exit()
        else:
            active.leave()

    def stop(self, why: str) -> None:
        """Stop everything at once."""
        self._context.is_leaving = self.has_hung_up = True
        for activity in self._context.activities:
            activity.stop(why)

    def close(self) -> None:
        """Close the activities, after the screen."""
        self._signals.note_left()
        self._context.is_leaving = True
        for activity in self._context.activities:
            activity.close()
        if not any(activity.defers_exit for activity in self._context.activities):
            self._signals.restore()

    def finish(self) -> None:
        """Wait for what is running, after the screen has closed."""
        self._context.is_leaving = True
        with ExitStack() as stack:
            stack.callback(self._signals.restore)
            for activity in reversed(self._context.activities):
                stack.callback(activity.finish)
