"""What the controllers share: the node, its reading thread, the app's screens, and its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tui.runtime.background_task import BackgroundTask, Failed, Then, call_in_thread
from tui.screens.doctor.state import DoctorState
from tui.screens.head import change_head

T = TypeVar("T")

if TYPE_CHECKING:
    from textual.app import App
    from textual.screen import Screen

    from probes.base.origin import Origin
    from probes.host.protocol import Host
    from tui.runtime.reading_thread import ReadingThread
    from tui.runtime.signals import ExitSignals
    from tui.screens.bandwidth_setup import BandwidthSetupScreen
    from tui.screens.list_screen import ListScreen
    from tui.screens.live.state import LiveState
    from tui.screens.overview.screen import OverviewScreen
    from tui.screens.run import RunScreen

    S = TypeVar("S", bound=Screen[Any])


class Activity(ABC):
    """An action or a series of bandwidth tests. Only one is active at a time: each would spoil the other."""

    name: str  # as the subject of a sentence
    key: str  # shows it
    task: BackgroundTask[Any]
    exit_seconds: float  # that `finish` waits

    @property
    @abstractmethod
    def is_active(self) -> bool:
        """Return whether it has begun and its end has not been shown."""

    @property
    def defers_exit(self) -> bool:
        """Return whether SIGTERM and SIGHUP must not end gdrtop yet, even after its screen has closed."""
        return False

    @abstractmethod
    def cancel(self) -> None:
        """Stop it without quitting."""

    @abstractmethod
    def leave(self) -> None:
        """Stop it, show it, and quit when it has ended."""

    def stop(self, why: str) -> None:
        """Stop it at once."""
        del why
        self.cancel()

    def close(self) -> None:
        """Stop it, and send no more events to the screen, which has closed."""
        self.stop("")
        self.task.mute()

    def finish(self) -> None:
        """Stop it and wait for its end, but not forever, after the screen has closed."""
        self.stop("")
        self.task.wait(self.exit_seconds)


class AppContext:
    """The node, its reading thread, and the app's screens."""

    def __init__(
        self, app: App[None], origin: Origin, reading_thread: ReadingThread, overview: OverviewScreen
    ) -> None:
        self.app, self.origin, self.reading_thread, self.overview = app, origin, reading_thread, overview
        self.doctor = DoctorState()
        self.host: Host | None = None  # until the reading thread has opened the node
        self.probed_at = 0.0  # seconds since 1970, of the newest probe
        self.is_leaving = False
        self.activities: tuple[Activity, ...] = ()
        self._live: LiveState | None = None

    @property
    def live(self) -> LiveState:
        """The last hour of the node."""
        if self._live is None:
            from tui.screens.live.state import LiveState

            self._live = LiveState()
        return self._live

    def draw_live(self) -> None:
        """Draw the Live screen, if it is open."""
        if len(self.app.screen_stack) > 1:
            from tui.screens.live.screen import LiveScreen

            for screen in self.shown(LiveScreen):
                screen.draw()

    def change_head(self, **fields: str | float | bool) -> None:
        """Show what is new in the head of all screens."""
        change_head(self.app, **fields)

    # Activities

    @property
    def active(self) -> Activity | None:
        """Return what is running, if anything is."""
        return next((activity for activity in self.activities if activity.is_active), None)

    def warn_if_busy(self) -> bool:
        """Return whether something is running, after a warning that names it."""
        active = self.active
        if active is not None:
            self.notify(f"{active.name} is running. Press {active.key} to see it.", "warning")
        return active is not None

    # Screens

    def run_in_thread(self, work: Callable[[], T], then: Then[T], failed: Failed) -> None:
        """Run `work` in a thread, then `then` or `failed` in the screen's thread."""
        call_in_thread(self.app.call_later, work, then, failed)

    def notify(
        self,
        message: str,
        severity: Literal["information", "warning", "error"] = "information",
        title: str = "",
        timeout: float | None = None,
    ) -> None:
        """Show a notification; its text is not markup."""
        self.app.notify(message, title=title, severity=severity, timeout=timeout, markup=False)

    def report_error(self, message: str) -> None:
        """Show an error."""
        self.notify(message, "error")

    def shown(self, kind: type[S]) -> list[S]:
        """Return the open screens of a kind, also those below others."""
        return [screen for screen in self.app.screen_stack if isinstance(screen, kind)]

    def draw(self, kind: type[ListScreen[Any] | BandwidthSetupScreen | RunScreen]) -> None:
        """Draw the open screens of a kind."""
        for screen in self.shown(kind):
            screen.draw()

    def show(self, kind: type[S], make: Callable[[], S]) -> None:
        """Go back to an open screen of this kind, or open one."""
        if self.shown(kind):
            while not isinstance(self.app.screen, kind):
                self.app.pop_screen()
        else:
            self.app.push_screen(make())

    def ask_to_stop(
        self,
        question: str,
        yes: str,
        stop: Callable[[], None],
        cancel: str = "",
        on_cancel: Callable[[], None] = lambda: None,
    ) -> None:
        """Ask before something is stopped; `yes` and `cancel` say what these answers do."""
        from tui.screens.ask import CANCEL, YES, AskScreen, sentences

        def answered(answer: str | None) -> None:
            if answer in (YES, CANCEL):
                (stop if answer == YES else on_cancel)()

        if not isinstance(self.app.screen, AskScreen):
            ask = AskScreen(sentences(question), yes, "Continue without stopping", cancel, exit_answer=YES)
            self.app.push_screen(ask, answered)


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
            active.cancel,
        )

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
