"""The part of the application that measures: settings, who would feel it, the series under way, leaving."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from textual.app import SystemCommand
from textual.screen import Screen

from probes.origin import Source
from tui.acting_app import ActingApp
from tui.bandwidth.measuring import Measuring
from tui.telling import TELLING_SECONDS

if TYPE_CHECKING:
    from probes.bandwidth.commands import Refused
    from probes.bandwidth.planned import Series
    from probes.bandwidth.result import Result
    from probes.examination import Examination
    from probes.origin import Origin
    from tui.bandwidth.live_state import LiveState
    from tui.bandwidth.setup_state import SetupState
    from tui.sampler import Examined
    from tui.screens.bandwidth_run import BandwidthRunScreen

_LEAVING_SECONDS = 15.0  # both ends have a few seconds each to end


class MeasuringApp(ActingApp):
    """Plans bandwidth tests, runs what was wanted, and shows what was measured beside the paths."""

    def __init__(self, origin: Origin, read_only: bool) -> None:
        super().__init__(origin, read_only)
        self._measuring = Measuring(lambda: self._host, read_only, self.call_later)
        self._setup: SetupState | None = None
        self._to_start: tuple[Examination, Series] | None = None  # once a fresh reading is there
        self._results_wanted = True

    # To the screens

    def action_bandwidth(self) -> None:
        """To the series under way, or whose end nobody has seen; else to the settings of a test."""
        from tui.screens.bandwidth_run import BandwidthRunScreen
        from tui.screens.bandwidth_setup import BandwidthSetupScreen

        state, screen = self._measuring.state, self.screen
        if isinstance(screen, BandwidthSetupScreen):
            return
        if state is not None and not state.was_seen and not isinstance(screen, BandwidthRunScreen):
            self._show_series(state)
            return
        if self._host is None:
            self.notify("The node is not open yet: once more in a moment.", markup=False)
            return
        if isinstance(screen, BandwidthRunScreen):
            self.pop_screen()
        self._open_setup()

    def _open_setup(self) -> None:
        from tui.bandwidth.setup_state import SetupState
        from tui.screens.bandwidth_setup import BandwidthSetupScreen

        setup = self._setup = self._setup or SetupState(self._origin)
        setup.refusal = self._measuring.refusal
        setup.preset(*self._overview.selected_pair)
        setup.do_not_run()
        examination = self._doctor.examination
        if examination is not None:
            self._take_for_setup(setup, examination)
        if not setup.refusal and (examination is None or examination.node.taken_at < self._probed_at):
            self._sampler.ask_examination()
        self._bring(BandwidthSetupScreen, lambda: BandwidthSetupScreen(setup))

    def _show_series(self, state: LiveState) -> None:
        from tui.screens.bandwidth_run import BandwidthRunScreen

        self._bring(BandwidthRunScreen, lambda: BandwidthRunScreen(state))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """What the palette offers beside the actions."""
        yield from super().get_system_commands(screen)
        yield SystemCommand("Bandwidth", "Measure between GPU and NIC, and judge it", self.action_bandwidth)
        if self._measuring.is_running:
            yield SystemCommand("Cancel bandwidth tests", "Ends them at both ends", self._cancel)

    # What would be run

    def note_examination(self, report: Examined) -> None:
        """The doctor has looked: other tests may be possible."""
        super().note_examination(report)
        if self._setup is None:
            return
        if report.examination is None:
            self._setup.fail(report.failure)
        elif not self._setup.is_asking and not self._setup.is_looking:
            self._take_for_setup(self._setup, report.examination)
            self.on_bandwidth_setup_screen_changed()
        self._draw_setup()

    def _take_for_setup(self, setup: SetupState, examination: Examination) -> None:
        is_first = setup.examination is None
        setup.take(examination)
        if is_first:
            self._load_baseline(setup)

    def on_bandwidth_setup_screen_changed(self) -> None:
        """Other settings: plans what follows from them."""
        setup = self._setup
        if setup is None or setup.examination is None or setup.refusal:
            return
        examination, choice = setup.examination, setup.choice
        setup.now, setup.kept = self._measuring.now(), self._measuring.kept

        def take(planned: Series | Refused) -> None:
            if setup.choice == choice:
                setup.planned = planned
                self._tell_felt(setup, examination)
                self._draw_setup()

        self._measuring.plan(examination, choice, take, self._fail_setup)

    def _tell_felt(self, setup: SetupState, examination: Examination) -> None:
        from probes.bandwidth.planned import Series

        newest, before = self._overview.newest_readings
        if isinstance(setup.planned, Series) and newest is not None:
            seen = replace(examination, reading=newest)
            setup.felt_by = self._measuring.felt_by(seen, setup.planned, before)

    def _fail_setup(self, what: str) -> None:
        if self._setup is not None:
            self._setup.fail(what)
            self._draw_setup()

    def _draw_setup(self) -> None:
        from tui.screens.bandwidth_setup import BandwidthSetupScreen

        for screen in self._shown(BandwidthSetupScreen):
            screen.draw()

    # Running it

    def on_bandwidth_setup_screen_start_wanted(self) -> None:
        """It is to be run: first a look at who would feel it."""
        from probes.bandwidth.planned import Series

        setup = self._setup
        if setup is None or setup.examination is None or not isinstance(setup.planned, Series):
            return
        if self._is_busy():
            return
        setup.is_looking = True
        self._look_then_start(setup.examination, setup.planned)
        self._draw_setup()

    def _is_busy(self) -> bool:
        if self._measuring.state is not None and self._measuring.state.ended is None:
            self.notify("Another bandwidth test is under way: Esc, then b shows it.", severity="warning")
            return True
        if self._is_acting:
            self.notify("An action is under way: x shows it.", severity="warning")
            return True
        return False

    def _look_then_start(self, examination: Examination, series: Series) -> None:
        """Waits for two readings after our own last test: its own traffic is nobody else's."""
        self._to_start = examination, series
        self._sampler.ask()

    def note_reading(self) -> None:
        """There is a newer reading."""
        if self._to_start is None:
            return
        newest, before = self._overview.newest_readings
        if newest is None or before is None or before.at < self._measuring.ended_at:
            self._sampler.ask()
            return
        (examination, series), self._to_start = self._to_start, None
        setup = self._setup
        if setup is None or not setup.is_looking:  # it is not wanted any more
            return
        setup.is_looking = False
        seen = replace(examination, reading=newest)
        setup.felt_by = self._measuring.felt_by(seen, series, before)
        if setup.felt_by:
            setup.is_asking = True
            setup.planned = series
            self._bring_setup(setup)
            self._draw_setup()
        else:
            self._start(seen, series)

    def _bring_setup(self, setup: SetupState) -> None:
        """The question stands on the setup's screen, also for a series that is run again."""
        from tui.screens.bandwidth_run import BandwidthRunScreen
        from tui.screens.bandwidth_setup import BandwidthSetupScreen

        if isinstance(self.screen, BandwidthSetupScreen | BandwidthRunScreen):
            if isinstance(self.screen, BandwidthRunScreen):
                self.pop_screen()
            self._bring(BandwidthSetupScreen, lambda: BandwidthSetupScreen(setup))

    def on_bandwidth_setup_screen_confirmed(self) -> None:
        """It is to be run though somebody would feel it."""
        from probes.bandwidth.planned import Series

        setup = self._setup
        if setup is None or setup.examination is None or not isinstance(setup.planned, Series):
            return
        setup.do_not_run()
        if not self._is_busy():
            self._start(setup.examination, setup.planned)

    def _start(self, examination: Examination, series: Series) -> None:
        from tui.bandwidth.live_state import LiveState
        from tui.screens.bandwidth_run import BandwidthRunScreen
        from tui.screens.bandwidth_setup import BandwidthSetupScreen

        assert self._setup is not None
        state = LiveState(
            examination,
            series,
            self._origin,
            self._setup.node,
            self._measuring.clock,
            self._measuring.kept,
            self._setup.baseline,
        )
        hear = lambda: self.set_timer(TELLING_SECONDS, self._take_measured)  # noqa: E731
        self._measuring.start(examination, series, state, hear)
        if isinstance(self.screen, BandwidthSetupScreen | BandwidthRunScreen):
            self.switch_screen(BandwidthRunScreen(state))
        self._overview.tell_measuring(state.word)

    def _take_measured(self) -> None:
        state = self._measuring.state
        if state is None:
            return
        was_over = state.ended is not None
        state.take(self._measuring.take())
        state.note_unshown(self._measuring.unshown)
        self._draw_series(state)
        if state.ended is None or was_over:
            return
        if self._is_leaving:
            self.exit()
            return
        self._load_results()
        self._tell_measured(state)

    def _tell_measured(self, state: LiveState) -> None:
        from tui.screens.bandwidth_run import BandwidthRunScreen

        if not isinstance(self.screen, BandwidthRunScreen):
            self.notify("The bandwidth test has ended: b shows it", title=state.series.title, markup=False)

    def _draw_series(self, state: LiveState) -> None:
        from tui.screens.bandwidth_run import BandwidthRunScreen

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
        """The whole series is to end."""
        self._cancel()

    def _cancel(self) -> None:
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
        setup = self._setup
        if setup is None or setup.examination is None or self._is_busy():
            return
        setup.is_looking = True
        self._look_then_start(setup.examination, message.state.series)

    def on_bandwidth_run_screen_baseline_wanted(self, message: BandwidthRunScreen.BaselineWanted) -> None:
        """These results are what machines of this type are expected to give."""
        self._measuring.save_baseline(
            message.state.done,
            lambda where: self._tell_baseline(f"Saved as the baseline of this machine type: {where}"),
            lambda why: self.notify(why, severity="error", markup=False),
        )

    def _tell_baseline(self, told: str) -> None:
        self.notify(told, markup=False)
        self._load_results()

    # What was measured before

    def begin_measuring(self) -> None:
        """After the first probe: loads the results that are kept, once."""
        if self._results_wanted and self._origin.source in (Source.LIVE, Source.SIMULATED):
            self._results_wanted = False
            self._load_results()

    def _load_results(self) -> None:
        def take(results: tuple[Result, ...]) -> None:
            self._overview.take_measured(results)
            if self._setup is not None:
                self._setup.kept = results
                self._load_baseline(self._setup)

        self._measuring.load(take, lambda what: self.log(what))

    def _load_baseline(self, setup: SetupState) -> None:
        def take(baseline: tuple[Result, ...]) -> None:
            setup.baseline = baseline
            self._draw_setup()

        if setup.examination is not None and not setup.refusal:
            from probes.bandwidth.machine_type import machine_type

            self._measuring.baseline(machine_type(setup.examination), take, lambda what: self.log(what))

    # Leaving

    def _hang_up(self, why: str) -> None:
        self._measuring.stop()
        super()._hang_up(why)

    async def action_quit(self) -> None:
        """Leaves; where a test runs, after both its ends have ended."""
        state = self._measuring.state
        if state is None or state.ended is not None or self._is_leaving:
            await super().action_quit()
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
