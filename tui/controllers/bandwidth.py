"""Run a series of bandwidth tests and show its results as they come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from probes.base.origin import Source
from tui.controllers.bandwidth_worker import BandwidthWorker
from tui.controllers.context import Activity, AppContext
from tui.runtime.background_task import DRAW_SECONDS
from tui.screens.keys import KEYS

if TYPE_CHECKING:
    from probes.bandwidth.model.command import Refused
    from probes.bandwidth.model.planned_series import Series
    from probes.bandwidth.model.request import Request
    from probes.bandwidth.model.result import Result
    from probes.snapshot.examination import Examination
    from tui.controllers.readings import ReadingsController
    from tui.runtime.reading_thread import Examined
    from tui.screens.bandwidth_run.state import SeriesState
    from tui.screens.bandwidth_setup import BandwidthSetupState, ToRun


class BandwidthSetupController:
    """The settings of the next test. `start` runs what was planned."""

    def __init__(
        self,
        context: AppContext,
        readings: ReadingsController,
        worker: BandwidthWorker,
        start: Callable[[BandwidthSetupState], object],
    ) -> None:
        self._readings = readings
        self._context, self._app, self._worker, self._start = context, context.app, worker, start
        self.state: BandwidthSetupState | None = None
        self._results_wanted = True
        self._checked: ToRun | None = None  # the series whose impact was checked last
        self.on_results: Callable[[], object] = lambda: None  # called when saved results were loaded

    def show(self, request: Request | None = None) -> None:
        """Show the settings, preset to a request, else to what is selected on the overview."""
        from tui.screens.bandwidth_setup import BandwidthSetupScreen, BandwidthSetupState

        setup = self.state = self.state or BandwidthSetupState(self._context.origin)
        setup.refusal = self._worker.refusal
        if request is None:
            setup.chosen.preset(*self._context.overview.selected_pair)
        else:
            setup.chosen.preset_request(request)
        setup.cancel_run()
        examination = self._context.doctor.examination
        if examination is not None:
            self._take_examination(setup, examination)
        is_outdated = examination is None or examination.node.taken_at < self._context.probed_at
        if not setup.refusal and is_outdated:
            self._context.reading_thread.ask_examination()
        self._context.show(BandwidthSetupScreen, lambda: BandwidthSetupScreen(setup))

    def cancel(self) -> None:
        """Do not run what was about to run."""
        if self.state is not None:
            self.state.cancel_run()

    def draw(self) -> None:
        """Draw the screen, if it is open."""
        from tui.screens.bandwidth_setup import BandwidthSetupScreen

        self._context.draw(BandwidthSetupScreen)

    def _fail(self, message: str) -> None:
        if self.state is not None:
            self.state.fail(message)
            self.draw()

    # The plan

    def note_examination(self, report: Examined) -> None:
        """Plan again: other tests may be possible."""
        if self.state is None:
            return
        if report.examination is None:
            self.state.fail(report.failure)
        elif self.state.to_run is None:
            self._take_examination(self.state, report.examination)
            self.plan()
        self.draw()

    def _take_examination(self, setup: BandwidthSetupState, examination: Examination) -> None:
        is_first = setup.examination is None
        setup.set_examination(examination)
        if is_first:
            self._load_baseline(setup)

    def plan(self) -> None:
        """Plan the tests of the settings, unless a series is about to run."""
        setup = self.state
        if setup is None or setup.examination is None or setup.refusal or setup.to_run is not None:
            return
        examination, request = setup.examination, setup.chosen.request
        setup.now = self._worker.now()
        setup.set_earlier(self._worker.kept, self._worker.unread)

        def apply(planned: Series | Refused) -> None:
            if setup.chosen.request == request:
                setup.planned = planned
                self._find_affected(setup, examination)
                self.draw()

        self._worker.plan(examination, request, apply, self._fail)

    def _find_affected(self, setup: BandwidthSetupState, examination: Examination) -> None:
        from probes.bandwidth.model.planned_series import Series

        newest, before = self._context.overview.newest_readings
        if isinstance(setup.planned, Series) and newest is not None:
            current = replace(examination, reading=newest)
            setup.affected_by = self._worker.affected_by(current, setup.planned, before)

    # Earlier results

    def load_results_once(self) -> None:
        """Load the saved results after the first probe."""
        if self._results_wanted and self._context.origin.source in (Source.LIVE, Source.SIMULATED):
            self._results_wanted = False
            self.load_results()

    def load_results(self) -> None:
        """Load the saved results and the baseline."""

        def apply(results: tuple[Result, ...]) -> None:
            self._context.overview.apply_results(results)
            self._note_slow(results)
            self.on_results()
            if self.state is not None:
                self.state.set_earlier(results, self._worker.unread)
                self._load_baseline(self.state)

        self._worker.load(apply, self._report_not_loaded)

    def _note_slow(self, results: tuple[Result, ...]) -> None:
        """Judge the node also by its slow results."""
        from tui.bandwidth.slow_results import slow_results_of

        live = self._readings.live
        if live is not None and live.monitor.topology is not None:
            found = slow_results_of(live.monitor.host, live.monitor.topology, results)
            live.monitor.note("bandwidth", found)

    def _load_baseline(self, setup: BandwidthSetupState) -> None:
        def apply(baseline: tuple[Result, ...], why_none: str) -> None:
            setup.set_baseline(baseline, why_none)
            self.draw()

        if setup.examination is not None and not setup.refusal:
            from probes.bandwidth.results.against_earlier import machine_type

            self._worker.baseline(machine_type(setup.examination), apply, self._report_not_loaded)

    def _report_not_loaded(self, message: str) -> None:
        self._context.report_error(f"Earlier bandwidth results could not be read: {message}")

    # Starting

    def run_planned(self) -> None:
        """Run the planned series, after a check of which jobs it would affect."""
        from probes.bandwidth.model.planned_series import Series
        from tui.screens.bandwidth_setup import ToRun

        setup = self.state
        if setup is not None and setup.examination is not None and isinstance(setup.planned, Series):
            self._check_then_start(setup, ToRun(setup.examination, setup.planned))

    def run_again(self, series: Series) -> None:
        """Run an earlier series again, after a check of which jobs it would affect now."""
        from tui.screens.bandwidth_setup import ToRun

        setup = self.state
        if setup is not None and setup.examination is not None:
            self._check_then_start(setup, ToRun(setup.examination, series, is_again=True))

    def _check_then_start(self, setup: BandwidthSetupState, to_run: ToRun) -> None:
        """Wait for two readings after our own last test, whose traffic is no job's."""
        if self._context.warn_if_busy():
            return
        setup.to_run = to_run
        self._checked = None
        self._context.reading_thread.ask()
        self.draw()

    def note_reading(self) -> None:
        """Check the impact of the series that is about to run, once there are two readings for it."""
        setup = self.state
        if setup is None or setup.to_run is None or not setup.is_checking:
            return
        newest, before = self._context.overview.newest_readings
        if newest is None or before is None or before.at < self._worker.ended_at:
            self._context.reading_thread.ask()
            return
        to_run = setup.to_run
        if self._checked is to_run:
            return
        self._checked = to_run

        def apply(examination: Examination, affected: tuple[str, ...]) -> None:
            if setup.to_run is to_run:  # else it was canceled
                setup.to_run = replace(to_run, examination=examination, affected_by=affected)
                if setup.is_asking:
                    self._ask(setup)
                    self.draw()
                else:
                    self._start(setup)

        def fail(message: str) -> None:
            setup.cancel_run()
            self._fail(message)

        current = replace(to_run.examination, reading=newest)
        self._worker.check_impact(current, to_run.series, before, apply, fail)

    def _ask(self, setup: BandwidthSetupState) -> None:
        """Ask over the settings, also for a series that runs again, whether jobs may be affected."""
        from tui.screens.ask import YES, AskScreen
        from tui.screens.bandwidth_run.screen import BandwidthRunScreen
        from tui.screens.bandwidth_setup import BandwidthSetupScreen

        to_run = setup.to_run
        if to_run is None or not isinstance(self._app.screen, BandwidthSetupScreen | BandwidthRunScreen):
            setup.cancel_run()
            text = "The bandwidth test would affect running jobs. It was not started."
            self._context.notify(text, "warning")
            return

        def answered(answer: str | None) -> None:
            if setup.to_run is not to_run:
                return
            if answer == YES:
                self._start(setup)
            else:
                setup.cancel_run()
                self.plan()  # nothing was planned during the question
                self.draw()

        if isinstance(self._app.screen, BandwidthRunScreen):
            self._app.pop_screen()
        self._context.show(BandwidthSetupScreen, lambda: BandwidthSetupScreen(setup))
        ask = AskScreen(partial(setup.question_lines, to_run), "Run it anyway", "Do not run it")
        self._app.push_screen(ask, answered)


class BandwidthController(Activity):
    """The newest series of tests, which `worker` runs; `setup` holds the settings of the next one."""

    name = "A bandwidth test"
    key = KEYS["bandwidth"].display
    exit_seconds = 15.0  # both ends of a test have a few seconds each to end

    def __init__(self, context: AppContext, readings: ReadingsController, read_only: bool) -> None:
        self._context, self._app = context, context.app
        self.task = self.worker = BandwidthWorker(lambda: context.host, read_only, context.app.call_later)
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
        from tui.screens.bandwidth_setup import BandwidthSetupScreen

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
        from tui.screens.bandwidth_run.screen import BandwidthRunScreen

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
        if not isinstance(self._app.screen, BandwidthRunScreen):
            text = f"The bandwidth test has ended. Press {self.key} to see it."
            self._context.notify(text, title=state.series.title)

    def note_end_seen(self) -> None:
        """Note that the end of the series was on the screen."""
        state = self.worker.state
        if state is not None:
            state.was_seen = True
            self._context.change_head(test=state.word)

    def save_baseline(self, state: SeriesState) -> None:
        """Save the results as the baseline of their machine type; ask first if that may be wrong."""
        from tui.screens.ask import YES, AskScreen, sentences

        setup = self.setup.state

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
        self._context.ask_to_stop("Cancel the bandwidth tests?", "Stop them at both ends", self.cancel)

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
        self._app.set_timer(self.exit_seconds, self._app.exit)

    def stop(self, why: str) -> None:
        """Stop the series at once."""
        del why
        self.worker.stop()
