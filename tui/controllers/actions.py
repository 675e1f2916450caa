"""List the actions, show their plans, and show what ran before."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from tui.controllers.context import Activity, AppContext
from tui.runtime.background_task import DRAW_SECONDS, BackgroundTask
from tui.screens.actions.state import ActionsState
from tui.screens.keys import KEYS
from widgets.base.lines import sentence

if TYPE_CHECKING:
    from textual.screen import Screen

    from probes.base.plan import Plan
    from probes.plans.catalogue import Offer
    from probes.snapshot.examination import Examination
    from tui.actions.audit_log import PastRun
    from tui.actions.dispatcher import Dispatcher, Prepared
    from tui.actions.events import RunEvent
    from tui.runtime.reading_thread import Examined
    from tui.screens.confirm import ConfirmScreen
    from tui.screens.run import RunState


REST_SECONDS = 10.0  # a read may never return; the kernel then refuses to unload the driver
_WAIT_BEYOND_STEP_SECONDS = 10.0


class ActionRunController(Activity):
    """The newest run of an action in a background thread, and its console."""

    name = "An action"
    key = KEYS["actions"].display

    def __init__(self, context: AppContext, read_only: bool) -> None:
        self._context, self._app, self._read_only = context, context.app, read_only
        self.task: BackgroundTask[RunEvent] = BackgroundTask(context.app.call_later, "action")
        self._lock = threading.Lock()
        self._dispatcher: Dispatcher | None = None
        self._stop_reason = ""
        self._state: RunState | None = None

    @property
    def dispatcher(self) -> Dispatcher:
        """Return what runs actions, in any thread; RuntimeError until the node is open."""
        with self._lock:
            if self._dispatcher is None:
                from tui.actions.dispatcher import Dispatcher

                if self._context.host is None:
                    raise RuntimeError("Still reading the node; try again in a moment")
                self._dispatcher = Dispatcher(self._context.host, self._read_only)
            return self._dispatcher

    @property
    def is_active(self) -> bool:
        """Return whether a run has begun and not ended."""
        return self._state is not None and self._state.ended is None

    # Running

    def start(self, prepared: Prepared, typed: str) -> None:
        """Run what was confirmed, unless something else is running."""
        from tui.actions.events import RunBegan, RunEnded, RunOutcome
        from tui.screens.run import RunScreen, RunState

        before = self._context.doctor.judgment
        if self._context.warn_if_busy():
            return
        if before is None:
            self._context.notify("The node is being checked. Try again in a moment.", "warning")
            return
        dispatcher = self.dispatcher
        self._state, self._stop_reason = RunState(prepared, before), ""

        def on_event(event: RunEvent) -> None:
            if isinstance(event, RunBegan) and self._stop_reason:
                dispatcher.stop(self._stop_reason)  # requested before there was anything to stop
            self.task.put(event)

        def run() -> None:
            with self._readings_rest(prepared.plan):
                dispatcher.run(prepared, typed, on_event, partial(self._get_password, prepared.title))

        self.task.run_in_background(
            lambda: self._app.set_timer(DRAW_SECONDS, self._take_events),
            run,
            lambda why: on_event(RunEnded(RunOutcome.UNKNOWN, why)),
        )
        self._app.switch_screen(RunScreen(self._state))
        self._context.change_head(action=self._state.word)

    @contextmanager
    def _readings_rest(self, plan: Plan) -> Iterator[None]:
        """Keep the reading thread off the driver while a plan unloads it; entered in the run's thread."""
        from tui.actions.guards import unloads_driver

        if not unloads_driver(plan):
            yield
            return
        self._context.reading_thread.rest(REST_SECONDS)
        try:
            yield
        finally:
            self._context.reading_thread.resume()

    def _get_password(self, title: str) -> bool:
        """Let sudo ask on the terminal; called in the run's thread."""
        from tui.actions.local_commands import ask_on_terminal, wait_for_password

        ask = partial(ask_on_terminal, self._app.suspend, title)
        return wait_for_password(self._app.call_later, ask, lambda: self._context.is_leaving)

    def _take_events(self) -> None:
        from tui.screens.run import RunScreen

        state = self._state
        if state is None:
            return
        had_ended = state.ended is not None
        state.add_events(self.task.drain())
        self._draw(state)
        if state.ended is None or had_ended:
            return
        if self._context.is_leaving:
            self._app.exit()
        elif state.needs_recheck:
            self._context.reading_thread.recheck()
        if not isinstance(self._app.screen, RunScreen):
            outcome = state.ended.outcome.value.capitalize()
            self._context.notify(f"{outcome}. Press {self.key} to see it.", title=state.prepared.title)

    def note_examination(self, report: Examined) -> None:
        """Show what the run has changed, if this is the check after it."""
        state = self._state
        if report.is_recheck and state is not None:
            state.note_recheck(report.judgment, report.failure)
            self._draw(state)

    # The console

    def toggle_console(self) -> bool:
        """Show the console of a run whose end was not seen, or leave a console; return whether either."""
        from tui.screens.run import RunScreen

        state, screen = self._state, self._app.screen
        if state is not None and not state.was_seen and not self._is_console(screen, state):
            self._show_console(state)
            return True
        if isinstance(screen, RunScreen):
            self._app.pop_screen()
            return True
        return False

    def _show_console(self, state: RunState) -> None:
        from tui.screens.run import RunScreen

        if any(self._is_console(screen, state) for screen in self._app.screen_stack):
            while not self._is_console(self._app.screen, state):
                self._app.pop_screen()
        else:
            self._app.push_screen(RunScreen(state))

    def _is_console(self, screen: Screen[Any], state: RunState) -> bool:
        from tui.screens.run import RunScreen

        return isinstance(screen, RunScreen) and screen.state is state

    def _draw(self, state: RunState) -> None:
        from tui.screens.run import RunScreen

        self._context.change_head(action=state.word)
        self._context.draw(RunScreen)

    def note_end_seen(self) -> None:
        """Note that the end of the run was on the screen."""
        state = self._state
        if state is not None:
            state.was_seen = True
            self._context.change_head(action=state.word)

    # Stopping

    def ask_to_stop(self) -> None:
        """Ask before the run is stopped; the second time, before its step is abandoned."""
        state = self._state
        if state is None or state.ended is not None:
            return
        if state.is_stopping:
            question = "gdrtop stops after the running step. Stop waiting for it? The step may continue."
            self._context.ask_to_stop(question, "Stop waiting for this step", self._stop)
        else:
            self._context.ask_to_stop("Stop the action?", "Stop after the running step", self._stop)

    def _stop(self) -> None:
        """Stop after the running step; the second time, without waiting for it."""
        state = self._state
        if state is None or state.ended is not None:
            return
        if state.want_stop():
            self.dispatcher.abandon_step()
        else:
            self.stop("stopped from the console")
        self._draw(state)

    def cancel(self) -> None:
        """Stop after the running step."""
        state = self._state
        if state is not None and not state.is_stopping:
            self._stop()

    # Leaving

    def leave(self) -> None:
        """Stop after the running step, then quit."""
        state = self._state
        if state is None or self._context.is_leaving:
            return
        self._context.is_leaving = state.is_leaving = True
        if not state.is_stopping:
            state.want_stop()
        self.stop("the user quit gdrtop")
        self._show_console(state)
        self._draw(state)

    def stop(self, why: str) -> None:
        """Begin no further step."""
        self._stop_reason = why
        if self._dispatcher is not None:
            self._dispatcher.stop(why)

    @property
    def defers_exit(self) -> bool:
        """Return whether a step is running: it must not be cut short by a signal."""
        return self.task.is_running

    def close(self) -> None:
        """Send no more events to the screen."""
        self.task.mute()

    def finish(self) -> None:
        """Wait for the running step, no longer than a step may take."""
        if not self.task.is_running:
            return
        from tui.actions.local_commands import STEP_SECONDS

        self.stop("the user quit gdrtop")
        with suppress(OSError, AttributeError):
            text = "gdrtop: waiting for the running step to end (Ctrl-C: stop waiting)"
            print(text, file=sys.stderr, flush=True)
        try:
            self.task.wait(STEP_SECONDS + _WAIT_BEYOND_STEP_SECONDS)
        except KeyboardInterrupt:
            self.dispatcher.abandon_step()
            self.task.wait(_WAIT_BEYOND_STEP_SECONDS)


class ActionsController:
    """The list of actions, the plan of one, the history; `run` is the newest run."""

    def __init__(self, context: AppContext, read_only: bool) -> None:
        self._context, self._app = context, context.app
        self.state = ActionsState()
        self.run = ActionRunController(context, read_only)
        self._wanted: tuple[str, Screen[Any]] | None = None  # an action whose plan is awaited, and where
        self._is_listed = asyncio.Event()  # cleared while `refresh` waits
        self._is_listed.set()

    def show(self) -> None:
        """Show the console of a run whose end was not seen yet, else the list of actions."""
        if not self.run.toggle_console():
            self._show_list()
            self._ask_offers()

    def _show_list(self) -> None:
        from tui.screens.actions.screen import ActionsScreen

        self._context.show(ActionsScreen, lambda: ActionsScreen(self.state))

    # The list

    async def refresh(self) -> None:
        """Update the list of actions, and wait for it."""
        self._is_listed.clear()
        self._ask_offers()
        await self._is_listed.wait()

    def _ask_offers(self) -> None:
        examination = self._context.doctor.examination
        self.state.begin()
        if examination is None or examination.node.taken_at < self._context.probed_at:
            self._context.reading_thread.ask_examination()
        else:
            self._ask_offers_of(examination)

    def _ask_offers_of(self, examination: Examination) -> None:
        findings = self._context.doctor.findings

        def ask() -> tuple[tuple[Offer, ...], str]:
            dispatcher = self.run.dispatcher
            return dispatcher.offers(examination, findings), dispatcher.refusal

        self._context.run_in_thread(ask, partial(self._take_offers, examination), self._fail)

    def note_examination(self, report: Examined) -> None:
        """Update the list, if it is shown or awaited, and the console of a run."""
        from tui.screens.actions.screen import ActionsScreen

        self.run.note_examination(report)
        if report.examination is None:
            self._fail(report.failure)
        elif self._wanted or not self._is_listed.is_set() or self._context.shown(ActionsScreen):
            self._ask_offers_of(report.examination)

    def _take_offers(self, examination: Examination, answer: tuple[tuple[Offer, ...], str]) -> None:
        offers, refusal = answer
        self.state.set_actions(offers, examination, refusal)
        self._is_listed.set()
        self._draw()
        if self._wanted is not None:
            (name, screen), self._wanted = self._wanted, None
            if self._app.screen is screen:  # else the user has gone to another screen
                self.confirm(self.state.offer(name), examination)

    def _fail(self, message: str) -> None:
        self.state.fail(message)
        self._is_listed.set()
        self._draw()
        if self._wanted is not None:
            self._wanted = None
            self._context.report_error(message)

    def _draw(self) -> None:
        from tui.screens.actions.screen import ActionsScreen

        self._context.draw(ActionsScreen)

    # The plan of an action

    def show_plan(self, name: str) -> None:
        """Show the plan of the action of this id, for the node as it is now."""
        self._wanted = name, self._app.screen
        self._ask_offers()

    def confirm(self, offer: Offer | None, examination: Examination) -> None:
        """Show the plan of an action and ask for confirmation, or show why it has none."""
        if offer is None:
            self._context.notify("No command can fix this.")
            return
        prepared = self.run.dispatcher.prepared(offer, examination)
        if isinstance(prepared, str):
            if self.state.offer(offer.id) is not None:
                self._show_in_list(offer.id)
            else:  # the fix of a finding or the undo of a run
                self._context.notify(sentence(prepared), "warning")
            return
        from tui.screens.confirm import ConfirmScreen, ConfirmState

        self._app.push_screen(ConfirmScreen(ConfirmState(prepared, self._context.origin)))

    def rehearse(self, prepared: Prepared, screen: ConfirmScreen) -> None:
        """Run a plan on a simulated twin of the node, and show on its screen what to expect afterwards."""
        from tui.actions.rehearsal import Rehearsal, rehearse

        before = self._context.doctor.judgment
        examination, host = self._context.doctor.examination, self._context.host
        if examination is None or before is None or host is None:
            self._context.notify("The node is being checked. Try again in a moment.", "warning")
            return
        screen.show_rehearsing()

        def apply(rehearsed: Rehearsal) -> None:
            screen.show_rehearsal(before, rehearsed.judgment, rehearsed.not_rehearsed)

        run = partial(rehearse, host, examination, prepared.action, prepared.plan)
        self._context.run_in_thread(run, apply, screen.show_rehearsal_failure)

    def _show_in_list(self, name: str) -> None:
        """Select an action that is not possible in the list, which says why."""
        self.state.filter("")
        self.state.choose(name)
        self._show_list()
        self._draw()

    # History

    def show_history(self) -> None:
        """Show the runs in the audit logs."""
        from tui.screens.history import HistoryScreen, HistoryState

        state = HistoryState(self._context.overview.hostname)

        def apply(answer: tuple[tuple[PastRun, ...], tuple[str, ...]]) -> None:
            state.set_runs(*answer)
            self._context.draw(HistoryScreen)

        def fail(message: str) -> None:
            state.fail(message)
            self._context.draw(HistoryScreen)

        self._context.show(HistoryScreen, lambda: HistoryScreen(state))
        self._context.run_in_thread(lambda: self.run.dispatcher.history(), apply, fail)

    def show_undo(self, run: PastRun) -> None:
        """Show the plan that undoes a past run."""
        examination, screen = self._context.doctor.examination, self._app.screen
        if examination is None:
            self._context.notify("Still checking the node. Try again in a moment.")
            self._context.reading_thread.ask_examination()
            return

        def apply(offer: Offer) -> None:
            if self._app.screen is screen:
                self.confirm(offer, examination)

        dispatcher = self.run.dispatcher
        self._context.run_in_thread(lambda: dispatcher.undo_of(run), apply, self._context.report_error)
