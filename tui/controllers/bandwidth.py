"""The part of the application that measures: who would feel it, the series under way, leaving."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tui.controllers.planning_app import PlanningApp
from tui.runtime.background import TELLING_SECONDS

if TYPE_CHECKING:
    from probes.snapshot.examination import Examination
    from tui.screens.bandwidth_run.screen import BandwidthRunScreen
    from tui.screens.bandwidth_run.state import LiveState
    from tui.screens.bandwidth_setup.state import SetupState, ToRun

_LEAVING_SECONDS = 15.0  # both ends have a few seconds each to end


class MeasuringApp(PlanningApp):
    """Run the tests that were wanted, and show their results as they come."""

    _looked_for: ToRun | None = None  # whom the look is for that is under way, or was last

    # To the screens

    def action_bandwidth(self) -> None:
        """Show the tests that run or whose end was not seen yet, else the settings of a test."""
        state = self._measuring.state
        if state is not None and not state.was_seen:
            self._show_series(state)
        elif self._host is None:
            self.notify("Still reading the node. Try again in a moment.", markup=False)
        else:
            self._open_setup()

    def _show_series(self, state: LiveState) -> None:
        from tui.screens.bandwidth_run.screen import BandwidthRunScreen

        self._bring(BandwidthRunScreen, lambda: BandwidthRunScreen(state))

    # Running it

    def on_bandwidth_setup_screen_start_wanted(self) -> None:
        """It is to be run: first a look at who would feel it."""
        from probes.bandwidth.model.planned_test import Series
        from tui.screens.bandwidth_setup.state import ToRun

        setup = self._setup
        if setup is None or setup.examination is None or not isinstance(setup.planned, Series):
            return
        self._look_then_start(setup, ToRun(setup.examination, setup.planned))

    def _look_then_start(self, setup: SetupState, to_run: ToRun) -> None:
        """Wait for two readings after our own last test: its own traffic is nobody else's."""
        if self._is_busy():
            return
        setup.to_run = to_run
        self._looked_for = None
        self._sampler.ask()
        self._draw_setup()

    def _is_busy(self) -> bool:
        why = self._why_not_act()
        if why:
            self.notify(why, severity="warning", markup=False)
        return bool(why)

    def _why_not_act(self) -> str:
        """A change would spoil what is measured, and a test what is changed."""
        state = self._measuring.state
        if state is not None and state.ended is None:
            return "A bandwidth test is running. Press b to see it."
        return super()._why_not_act()

    def note_reading(self) -> None:
        """There is a newer reading."""
        setup = self._setup
        if setup is None or setup.to_run is None or not setup.is_looking:
            return
        newest, before = self._overview.newest_readings
        if newest is None or before is None or before.at < self._measuring.ended_at:
            self._sampler.ask()
            return
        to_run = setup.to_run
        if self._looked_for is to_run:
            return
        self._looked_for = to_run
        seen = replace(to_run.examination, reading=newest)

        def take(examination: Examination, felt: tuple[str, ...]) -> None:
            if setup.to_run is to_run:  # nobody has changed his mind
                setup.to_run = replace(to_run, examination=examination, felt_by=felt)
                self._ask_or_start(setup)

        def fail(what: str) -> None:
            setup.do_not_run()
            self._fail_setup(what)

        self._measuring.look(seen, to_run.series, before, take, fail)

    def _ask_or_start(self, setup: SetupState) -> None:
        if setup.is_asking:
            self._bring_setup(setup)
            self._draw_setup()
        else:
            self._start(setup)

    def _bring_setup(self, setup: SetupState) -> None:
        """The question stands on the setup's screen, also for a series that is run again."""
        from tui.screens.bandwidth_run.screen import BandwidthRunScreen
        from tui.screens.bandwidth_setup.screen import BandwidthSetupScreen

        if isinstance(self.screen, BandwidthSetupScreen | BandwidthRunScreen):
            if isinstance(self.screen, BandwidthRunScreen):
                self.pop_screen()
            self._bring(BandwidthSetupScreen, lambda: BandwidthSetupScreen(setup))

    def on_bandwidth_setup_screen_confirmed(self) -> None:
        """It is to be run though somebody would feel it."""
        if self._setup is not None and self._setup.is_asking:
            self._start(self._setup)

    def _start(self, setup: SetupState) -> None:
        """Run just what was looked at and asked for."""
        from tui.screens.bandwidth_run.screen import BandwidthRunScreen
        from tui.screens.bandwidth_run.state import LiveState
        from tui.screens.bandwidth_setup.screen import BandwidthSetupScreen

        to_run, setup.to_run = setup.to_run, None
        if to_run is None or self._is_busy():
            self.on_bandwidth_setup_screen_changed()
            self._draw_setup()
            return
        state = LiveState(
            to_run.examination,
            to_run.series,
            self._origin,
            setup.node,
            self._measuring.clock,
            self._measuring.kept,
            setup.baseline,
        )
        hear = lambda: self.set_timer(TELLING_SECONDS, self._take_measured)  # noqa: E731
        is_confirmed = bool(to_run.felt_by)
        self._measuring.start(to_run.examination, to_run.series, state, hear, is_confirmed)
        if isinstance(self.screen, BandwidthSetupScreen | BandwidthRunScreen):
            self.switch_screen(BandwidthRunScreen(state))
        self._overview.tell_measuring(state.word)

    def _take_measured(self) -> None:
        state = self._measuring.state
        if state is None:
            return
        was_over = state.ended is not None
        state.take(self._measuring.take())
        state.console.note_unshown(self._measuring.unshown)
        self._draw_series(state)
        if state.ended is None or was_over:
            return
        if self._is_leaving:
            self.exit()
            return
        self._load_results()
        self._tell_measured(state)

    def _tell_measured(self, state: LiveState) -> None:
        from tui.screens.bandwidth_run.screen import BandwidthRunScreen

        if not isinstance(self.screen, BandwidthRunScreen):
            self.notify(
                "The bandwidth test has ended. Press b to see it.", title=state.series.title, markup=False
            )

    def _draw_series(self, state: LiveState) -> None:
        from tui.screens.bandwidth_run.screen import BandwidthRunScreen

        self._overview.tell_measuring(state.word)
        for screen in self._shown(BandwidthRunScreen):
            if screen.state is state:
                screen.draw()

    # What the series' screen asks for

    def on_bandwidth_run_screen_end_seen(self) -> None:
        """The end of a series was on the screen."""
        state = self._measuring.state
        if state is not None:
            state.was_seen = True
            self._overview.tell_measuring(state.word)

    def on_bandwidth_run_screen_cancel_wanted(self) -> None:
        """Ask before the whole series is ended."""
        from tui.screens.ask import YES

        def answered(answer: str | None) -> None:
            if answer == YES:
                self._cancel()

        self._ask("Cancel the bandwidth tests?", "Stop them at both ends", then=answered)

    def _cancel(self) -> None:
        """PlannedProcess the whole series."""
        state = self._measuring.state
        if state is not None and state.ended is None:
            state.wants_end = True
            self._measuring.stop()
            self._draw_series(state)

    def on_bandwidth_run_screen_skip_wanted(self) -> None:
        """The test under way is to end."""
        self._measuring.skip()

    def on_bandwidth_run_screen_again_wanted(self, message: BandwidthRunScreen.AgainWanted) -> None:
        """The same once more, after a look at who would feel it now."""
        from tui.screens.bandwidth_setup.state import ToRun

        setup = self._setup
        if setup is not None and setup.examination is not None:
            self._look_then_start(setup, ToRun(setup.examination, message.state.series, is_again=True))

    def on_bandwidth_run_screen_baseline_wanted(self, message: BandwidthRunScreen.BaselineWanted) -> None:
        """These results are what machines of this type are expected to give; asks where that may be wrong."""
        state = message.state
        why = "" if self._setup is None else state.why_ask(self._setup.baseline)
        if why and not message.is_sure:
            told = f"{why[0].upper()}{why[1:]}. Press B again to save it as the baseline anyway."
            self.notify(told, severity="warning", markup=False)
            return
        self._measuring.save_baseline(
            state.done,
            lambda where: self._tell_baseline(f"Saved as the baseline of this machine type: {where}"),
            lambda why: self.notify(why, severity="error", markup=False),
        )

    def _tell_baseline(self, told: str) -> None:
        self.notify(told, markup=False)
        self._load_results()

    # Leaving

    def _hang_up(self, why: str) -> None:
        self._measuring.stop()
        super()._hang_up(why)

    @property
    def _what_runs(self) -> str:
        state = self._measuring.state
        return "A bandwidth test" if state is not None and state.ended is None else super()._what_runs

    def _cancel_running(self) -> None:
        state = self._measuring.state
        if state is not None and state.ended is None:
            self._cancel()
        else:
            super()._cancel_running()

    def _leave(self) -> None:
        """Quit; where a test runs, after both its ends have ended."""
        state = self._measuring.state
        if state is None or state.ended is not None or self._is_leaving:
            super()._leave()
            return
        self._is_leaving = state.is_leaving = state.wants_end = True
        self._measuring.stop()
        self._show_series(state)
        self._draw_series(state)
        self.set_timer(_LEAVING_SECONDS, self.exit)

    def end_acting(self) -> None:
        """When the screen has gone."""
        self._measuring.stop()
        self._measuring.hush()
        super().end_acting()

    def end_actions(self) -> None:
        """After the screen has gone: waits until the ends of a test have ended, but not for ever."""
        self._measuring.stop()
        try:
            self._measuring.wait(_LEAVING_SECONDS)
        finally:
            super().end_actions()
