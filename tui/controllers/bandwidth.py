"""Run a series of bandwidth tests and show its results as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.controllers.bandwidth_setup import BandwidthSetupController
from tui.controllers.bandwidth_worker import BandwidthWorker
from tui.runtime.background_task import DRAW_SECONDS
from tui.screens.keys import KEYS

if TYPE_CHECKING:
    from probes.bandwidth.model.request import Request
    from tui.controllers.context import AppContext
    from tui.controllers.readings import ReadingsController
    from tui.screens.bandwidth_run.screen import BandwidthRunScreen
    from tui.screens.bandwidth_run.state import SeriesState
    from tui.screens.bandwidth_setup.state import BandwidthSetupState

_EXIT_SECONDS = 15.0  # both ends of a test have a few seconds each to end


class BandwidthController:
    """The newest series of tests, which `worker` runs; `setup` holds the settings of the next one."""

    name = "A bandwidth test"
    key = KEYS["bandwidth"].display
    defers_exit = False

    def __init__(self, context: AppContext, readings: ReadingsController, read_only: bool) -> None:
        self._context, self._app = context, context.app
        self.worker = BandwidthWorker(lambda: context.host, read_only, context.app.call_later)
        self.setup = BandwidthSetupController(context, readings, self.worker, self._start)

    @property
    def is_active(self) -> bool:
        """Return whether a series has begun and not ended."""
        return self.worker.state is not None and self.worker.state.ended is None

    # Screens

    def show(self) -> None:
        """Show a series whose end was not seen yet, else the settings."""
        state = self.worker.state
        if state is not None and not state.was_seen:
            self._show_series(state)
        elif self._context.host is None:
            self._context.notify("Still reading the node. Try again in a moment.")
        else:
            self.setup.show()

    def show_request(self, request: Request) -> None:
        """Show the settings of a request, unless a series is running."""
        if not self._context.warn_if_busy():
            self.setup.show(request)

    def _show_series(self, state: SeriesState) -> None:
        from tui.screens.bandwidth_run.screen import BandwidthRunScreen

        self._context.show(BandwidthRunScreen, lambda: BandwidthRunScreen(state))

    def _draw(self, state: SeriesState) -> None:
        from tui.screens.bandwidth_run.screen import BandwidthRunScreen

        self._context.change_head(test=state.word)
        for screen in self._context.shown(BandwidthRunScreen):
            if screen.state is state:
                screen.draw()

    # Running

    def _start(self, setup: BandwidthSetupState) -> None:
        """Run the series that was checked and confirmed."""
        from tui.screens.bandwidth_run.screen import BandwidthRunScreen
        from tui.screens.bandwidth_run.state import SeriesState
        from tui.screens.bandwidth_setup.screen import BandwidthSetupScreen

        to_run, setup.to_run = setup.to_run, None
        if to_run is None or self._context.warn_if_busy():
            self.setup.plan()
            self.setup.draw()
            return
        state = SeriesState(
            to_run.examination,
            to_run.series,
            self._context.origin,
            setup.node,
            self.worker.clock,
            self.worker.kept,
            setup.baseline,
        )
        self.worker.start(
            to_run.examination,
            to_run.series,
            state,
            on_ready=lambda: self._app.set_timer(DRAW_SECONDS, self._take_events),
            may_disturb=bool(to_run.affected_by),
        )
        if isinstance(self._app.screen, BandwidthRunScreen):
            self._app.switch_screen(BandwidthRunScreen(state))
        elif isinstance(self._app.screen, BandwidthSetupScreen):
            self._app.push_screen(BandwidthRunScreen(state))  # going back leads to the settings
        self._context.change_head(test=state.word)

    def _take_events(self) -> None:
        state = self.worker.state
        if state is None:
            return
        had_ended = state.ended is not None
        state.apply(self.worker.drain())
        state.console.note_unshown(self.worker.unshown)
        self._draw(state)
        if state.ended is None or had_ended:
            return
        if self._context.is_leaving:
            self._app.exit()
            return
        self.setup.load_results()
        self._notify_end(state)

    def _notify_end(self, state: SeriesState) -> None:
        from tui.screens.bandwidth_run.screen import BandwidthRunScreen

        if not isinstance(self._app.screen, BandwidthRunScreen):
            self._context.notify(
                f"The bandwidth test has ended. Press {self.key} to see it.", title=state.series.title
            )

    def note_end_seen(self) -> None:
        """Note that the end of the series was on the screen."""
        state = self.worker.state
        if state is not None:
            state.was_seen = True
            self._context.change_head(test=state.word)

    def save_baseline(self, message: BandwidthRunScreen.BaselineRequested) -> None:
        """Save the results as the baseline of their machine type; ask first if that may be wrong."""
        from tui.screens.ask import YES, AskScreen, sentences

        state, setup = message.state, self.setup.state

        def answered(answer: str | None) -> None:
            if answer == YES:
                self.worker.save_baseline(state.measured, self._note_baseline, self._context.report_error)

        why = "" if setup is None else state.baseline_warning(setup.baseline)
        if why:
            ask = AskScreen(
                sentences(f"Warning: {why}."), "Save it as the baseline anyway", "Keep the baseline as it is"
            )
            self._app.push_screen(ask, answered)
        else:
            answered(YES)

    def _note_baseline(self, path: str) -> None:
        self._context.notify(f"Saved as the baseline of this machine type: {path}")
        self.setup.load_results()

    # Stopping

    def ask_to_cancel(self) -> None:
        """Ask before the whole series is canceled."""
        from tui.screens.ask import YES

        def answered(answer: str | None) -> None:
            if answer == YES:
                self.cancel()

        self._context.ask_to_stop("Cancel the bandwidth tests?", "Stop them at both ends", then=answered)

    def cancel(self) -> None:
        """Stop the whole series."""
        state = self.worker.state
        if state is not None and state.ended is None:
            state.wants_end = True
            self.worker.stop()
            self._draw(state)

    def leave(self) -> None:
        """Quit when both ends of the running test have ended."""
        state = self.worker.state
        if state is None or self._context.is_leaving:
            self._app.exit()
            return
        self._context.is_leaving = state.is_leaving = state.wants_end = True
        self.worker.stop()
        self._show_series(state)
        self._draw(state)
        self._app.set_timer(_EXIT_SECONDS, self._app.exit)

    def stop(self, why: str) -> None:
        """Stop the series at once."""
        del why
        self.worker.stop()

    def close(self) -> None:
        """Stop the series, and send no more events to the screen."""
        self.worker.stop()
        self.worker.mute()

    def finish(self) -> None:
        """Wait for both ends of a test to end, but not forever."""
        self.worker.stop()
        self.worker.wait(_EXIT_SECONDS)
