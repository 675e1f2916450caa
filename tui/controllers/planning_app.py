"""The part of the application before a bandwidth test: what would be run, what was measured earlier."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from probes.base.origin import Source
from tui.controllers.acting_app import ActingApp
from tui.controllers.bandwidth_worker import Measuring

if TYPE_CHECKING:
    from probes.bandwidth.model.planned_test import Series
    from probes.bandwidth.model.result import Result
    from probes.bandwidth.tools.command import Refused
    from probes.base.origin import Origin
    from probes.snapshot.examination import Examination
    from tui.runtime.sampler import Examined
    from tui.screens.bandwidth_setup.state import SetupState


class PlanningApp(ActingApp):
    """Plan bandwidth tests as they are set up; load earlier results and the baseline."""

    def __init__(self, origin: Origin, read_only: bool) -> None:
        super().__init__(origin, read_only)
        self._measuring = Measuring(lambda: self._host, read_only, self.call_later)
        self._setup: SetupState | None = None
        self._results_wanted = True

    def _open_setup(self) -> None:
        from tui.screens.bandwidth_setup.screen import BandwidthSetupScreen
        from tui.screens.bandwidth_setup.state import SetupState

        setup = self._setup = self._setup or SetupState(self._origin)
        setup.refusal = self._measuring.refusal
        setup.chosen.preset(*self._overview.selected_pair)
        setup.do_not_run()
        examination = self._doctor.examination
        if examination is not None:
            self._take_for_setup(setup, examination)
        if not setup.refusal and (examination is None or examination.node.taken_at < self._probed_at):
            self._sampler.ask_examination()
        self._bring(BandwidthSetupScreen, lambda: BandwidthSetupScreen(setup))

    def action_overview(self) -> None:
        """Go back to the overview; what was about to be run is not."""
        if self._setup is not None:
            self._setup.do_not_run()
        super().action_overview()

    # What would be run

    def note_examination(self, report: Examined) -> None:
        """The doctor has looked: other tests may be possible."""
        super().note_examination(report)
        if self._setup is None:
            return
        if report.examination is None:
            self._setup.fail(report.failure)
        elif self._setup.to_run is None:
            self._take_for_setup(self._setup, report.examination)
            self.on_bandwidth_setup_screen_changed()
        self._draw_setup()

    def _take_for_setup(self, setup: SetupState, examination: Examination) -> None:
        is_first = setup.examination is None
        setup.take(examination)
        if is_first:
            self._load_baseline(setup)

    def on_bandwidth_setup_screen_changed(self) -> None:
        """Other settings: plans what follows from them; not while something else is asked."""
        setup = self._setup
        if setup is None or setup.examination is None or setup.refusal or setup.to_run is not None:
            return
        examination, request = setup.examination, setup.chosen.request
        setup.now = self._measuring.now()
        setup.take_kept(self._measuring.kept, self._measuring.unread)

        def take(planned: Series | Refused) -> None:
            if setup.chosen.request == request:
                setup.planned = planned
                self._tell_felt(setup, examination)
                self._draw_setup()

        self._measuring.plan(examination, request, take, self._fail_setup)

    def _tell_felt(self, setup: SetupState, examination: Examination) -> None:
        from probes.bandwidth.model.planned_test import Series

        newest, before = self._overview.newest_readings
        if isinstance(setup.planned, Series) and newest is not None:
            seen = replace(examination, reading=newest)
            setup.felt_by = self._measuring.felt_by(seen, setup.planned, before)

    def _fail_setup(self, what: str) -> None:
        if self._setup is not None:
            self._setup.fail(what)
            self._draw_setup()

    def _draw_setup(self) -> None:
        from tui.screens.bandwidth_setup.screen import BandwidthSetupScreen

        for screen in self._shown(BandwidthSetupScreen):
            screen.draw()

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
                self._setup.take_kept(results, self._measuring.unread)
                self._load_baseline(self._setup)

        self._measuring.load(take, self._tell_not_loaded)

    def _load_baseline(self, setup: SetupState) -> None:
        def take(baseline: tuple[Result, ...], why_none: str) -> None:
            setup.take_baseline(baseline, why_none)
            self._draw_setup()

        if setup.examination is not None and not setup.refusal:
            from probes.bandwidth.results.baseline import machine_type

            self._measuring.baseline(machine_type(setup.examination), take, self._tell_not_loaded)

    def _tell_not_loaded(self, what: str) -> None:
        told = f"Earlier bandwidth results could not be read: {what}"
        self.notify(told, severity="error", markup=False)
