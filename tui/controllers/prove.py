"""Register the memory of GPUs with NICs from the dashboard: after a question, in a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.controllers.context import Activity, AppContext
from tui.runtime.background_task import BackgroundTask
from tui.screens.keys import KEYS

if TYPE_CHECKING:
    from probes.bandwidth.model.command import Refused
    from probes.bandwidth.prove import GpuTrial, PairResult
    from probes.snapshot.examination import Examination
    from tui.bandwidth.prove.session import RegistrationSession
    from tui.screens.prove import RegistrationState


_NOT_READ = "Still reading the node. Try again in a moment."


class RegistrationController(Activity):
    """The state of the screen, and the thread that registers."""

    name = "A registration"
    key = KEYS["prove"].display
    exit_seconds = 10.0  # the process of a GPU has some seconds to end

    def __init__(self, context: AppContext, read_only: bool) -> None:
        self._context, self._app, self._read_only = context, context.app, read_only
        self.task: BackgroundTask[tuple[PairResult, ...] | Refused | None] = BackgroundTask(
            context.app.call_later, "registration"
        )
        self._state: RegistrationState | None = None
        self._session: RegistrationSession | None = None

    @property
    def is_active(self) -> bool:
        """Return whether a run has begun and not ended."""
        return self._state is not None and self._state.is_running

    def show(self) -> None:
        """Show the screen, and read what would be tried."""
        if self._context.host is None:
            self._context.notify(_NOT_READ)
            return
        from tui.screens.prove import RegistrationScreen, RegistrationState

        if self._state is None:
            self._state = RegistrationState()
        state = self._state
        self._context.show(RegistrationScreen, lambda: RegistrationScreen(state))
        if not state.is_running:
            self.plan()

    def _draw(self) -> None:
        from tui.screens.prove import RegistrationScreen

        self._context.draw(RegistrationScreen)

    # Planning

    def plan(self, then_ask: bool = False) -> None:
        """Read which GPUs are tried, and who uses them now; `then_ask`: then ask whether to register."""
        from probes.bandwidth.model.command import Refused
        from probes.bandwidth.prove import plan_registration
        from probes.snapshot.examination import examine
        from tui.bandwidth.impact_check import with_users

        state, host, before = self._state, self._context.host, self._context.doctor.examination
        if state is None or host is None or state.is_running:
            return

        def work() -> tuple[Examination, tuple[GpuTrial, ...] | Refused]:
            examination = examine(host) if before is None else with_users(host, before)
            return examination, plan_registration(examination)

        def take(planned: tuple[Examination, tuple[GpuTrial, ...] | Refused]) -> None:
            examination, trials = planned
            if isinstance(trials, Refused):
                state.fail(trials.reason)
            else:
                state.set_trials(examination, trials)
                if then_ask:
                    self._ask(state)
            self._draw()

        def fail(message: str) -> None:
            state.fail(message)
            self._draw()

        self._context.run_in_thread(work, take, fail)

    def ask(self) -> None:
        """Read the node again, and ask whether to register."""
        if not self._context.warn_if_busy():
            self.plan(then_ask=True)

    def _ask(self, state: RegistrationState) -> None:
        from probes.base.origin import Source
        from tui.bandwidth.prove.session import RegistrationSession
        from tui.screens.ask import YES, AskScreen
        from widgets.bandwidth.prove import draw_users, notice_lines

        host, trials = self._context.host, state.trials
        if host is None or trials is None or isinstance(self._app.screen, AskScreen):
            return
        session = RegistrationSession(host, self._read_only)
        if session.refusal:
            state.fail(f"nothing was registered: {session.refusal}")
            return
        used = [trial for trial in trials if trial.is_tried and trial.users]
        is_simulated = self._context.origin.source is Source.SIMULATED

        def answered(answer: str | None) -> None:
            if answer == YES and not self._context.warn_if_busy():
                self._start(session, state)

        ask = AskScreen(
            lambda width: [
                *notice_lines(width, is_simulated),
                *((*draw_users(used, width), ()) if used else ()),
            ],
            "Register, on GPUs in use too" if used else "Register",
            "Register nothing",
        )
        self._app.push_screen(ask, answered)

    # Running

    def _start(self, session: RegistrationSession, state: RegistrationState) -> None:
        examination, trials = state.examination, state.trials
        assert examination is not None
        assert trials is not None
        self._session = session
        state.begin()
        self._draw()

        def run() -> None:
            ended = session.run(examination, trials, self.task.put)
            self.task.put(None if isinstance(ended, tuple) else ended)

        def failed(why: str) -> None:
            from probes.bandwidth.model.command import Refused

            self.task.put(Refused(why))

        self.task.run_in_background(self._take_results, run, failed)

    def _take_results(self) -> None:
        state = self._state
        if state is None:
            return
        for event in self.task.drain():
            if isinstance(event, tuple):
                state.add(event)
            elif event is None:
                self._end(state)
            else:
                state.fail(f"nothing was registered: {event.reason}")
                self._end(state)
        self._draw()

    def _end(self, state: RegistrationState) -> None:
        from tui.screens.prove import RegistrationScreen

        state.is_running = False
        if self._context.is_leaving:
            self._app.exit()
        elif not isinstance(self._app.screen, RegistrationScreen):
            self._context.notify(f"The registration has ended. Press {self.key} to see it.")

    # Stopping

    def ask_to_cancel(self) -> None:
        """Ask before the run is canceled."""
        self._context.ask_to_stop("Cancel the registration?", "Stop it", self.cancel)

    def cancel(self) -> None:
        """Stop the run."""
        if self._session is not None:
            self._session.stop()

    def leave(self) -> None:
        """Quit when the run has ended."""
        self._context.is_leaving = True
        self.cancel()
        self._app.set_timer(self.exit_seconds, self._app.exit)
