"""The part of the application that acts: the run under way on its console, and leaving in order."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from textual.screen import Screen

from tui.controllers.actions import OfferingApp
from tui.runtime.background import TELLING_SECONDS
from tui.runtime.signals import TERMINAL_GONE, Hangups
from tui.runtime.terminal import TerminalDriver

if TYPE_CHECKING:
    from probes.base.origin import Origin
    from probes.base.plan import Plan
    from tui.runtime.sampler import Examined
    from tui.screens.confirm.screen import ConfirmScreen
    from tui.screens.run.state import RunState

REST_SECONDS = 10.0  # a read under way may never end; the kernel then refuses to unload the driver
_WAIT_BEYOND_STEP_SECONDS = 10.0


class ActingApp(OfferingApp):
    """Run what was confirmed, show it, and check the node again."""

    def __init__(self, origin: Origin, read_only: bool) -> None:
        super().__init__(origin, read_only)
        self._hangups = Hangups(self._hang_up, self._stop_waiting_for_terminal)
        self._is_leaving = False

    def action_actions(self) -> None:
        """Show the console of a run that runs or whose end was not seen yet, else the list of actions."""
        from tui.screens.run.screen import RunScreen

        state, screen = self._acting.state, self.screen
        if state is not None and not state.was_seen and not self._is_console(screen, state):
            self._show_console(state)
            return
        if isinstance(screen, RunScreen):
            self.pop_screen()
            return
        super().action_actions()

    # Doing it

    def on_confirm_screen_confirmed(self, message: ConfirmScreen.Confirmed) -> None:
        """Run what was confirmed."""
        from tui.screens.run.screen import RunScreen
        from tui.screens.run.state import RunState
        from widgets.doctor.changes import Judged

        examination, why = self._doctor.examination, self._why_not_act()
        if why or examination is None:
            self.notify(
                why or "The node is being checked. Try again in a moment.", severity="warning", markup=False
            )
            return
        state = RunState(message.prepared, self._origin, Judged(examination.verdict, self._doctor.findings))
        self._acting.start(
            message.prepared,
            message.typed,
            state,
            hear=lambda: self.set_timer(TELLING_SECONDS, self._take_told),
            get_password=partial(self._get_password, message.prepared.title),
            around=self._readings_rest(message.prepared.plan),
        )
        self.switch_screen(RunScreen(state))
        self._overview.tell_acting(state.word)

    def _why_not_act(self) -> str:
        """What runs here and must end first, as a sentence; "" where nothing does."""
        return "An action is running. Press x to see it." if self._is_acting else ""

    @property
    def _is_acting(self) -> bool:
        return self._acting.state is not None and self._acting.state.ended is None

    @contextmanager
    def _readings_rest(self, plan: Plan) -> Iterator[None]:
        """In the run's thread: while the driver is unloaded, nothing of ours may hold it."""
        from tui.actions.guards import unloads_driver

        if not unloads_driver(plan):
            yield
            return
        self._sampler.rest(REST_SECONDS)
        try:
            yield
        finally:
            self._sampler.resume()

    def _take_told(self) -> None:
        state = self._acting.state
        if state is None:
            return
        was_over = state.ended is not None
        state.take(self._acting.take())
        self._draw_run(state)
        if state.ended is None or was_over:
            return
        if self._is_leaving:
            self.exit()
        elif state.wants_look:
            self._sampler.look_again()
        self._tell_end(state)

    def _tell_end(self, state: RunState) -> None:
        from tui.screens.run.screen import RunScreen

        if state.ended is not None and not isinstance(self.screen, RunScreen):
            ended = f"{state.ended.outcome.value.capitalize()}. Press x to see it."
            self.notify(ended, title=state.prepared.title, markup=False)

    def _draw_run(self, state: RunState) -> None:
        from tui.screens.run.screen import RunScreen

        self._overview.tell_acting(state.word)
        for screen in self._shown(RunScreen):
            screen.draw()

    def on_run_screen_end_seen(self) -> None:
        """The end of a run was on the screen."""
        state = self._acting.state
        if state is not None:
            state.was_seen = True
            self._overview.tell_acting(state.word)

    def note_examination(self, report: Examined) -> None:
        """The doctor has looked: the offers are others, and the run that has just ended shows its effect."""
        from widgets.doctor.changes import Judged

        state = self._acting.state
        if report.looked_again and state is not None:
            examination = report.examination
            judged = None if examination is None else Judged(examination.verdict, self._doctor.findings)
            state.looked_again(judged, report.failure)
            self._draw_run(state)
        if report.examination is None:
            self._fail_offers(report.failure)
        else:
            self._renew_offers(report.examination)

    def _show_console(self, state: RunState) -> None:
        from tui.screens.run.screen import RunScreen

        if any(self._is_console(screen, state) for screen in self.screen_stack):
            while not self._is_console(self.screen, state):
                self.pop_screen()
        else:
            self.push_screen(RunScreen(state))

    def _is_console(self, screen: Screen[Any], state: RunState) -> bool:
        from tui.screens.run.screen import RunScreen

        return isinstance(screen, RunScreen) and screen.state is state

    def on_run_screen_stop_wanted(self) -> None:
        """Ask before the run is stopped, and before its step is given up."""
        from tui.screens.ask import YES

        def stop(answer: str | None) -> None:
            if answer == YES:
                self._stop_run()

        state = self._acting.state
        if state is None or state.ended is not None:
            return
        if state.is_stopping:
            self._ask(
                "gdrtop stops after the step that is running. Stop waiting for it? The step may go on.",
                "Stop waiting for this step",
                then=stop,
            )
        else:
            self._ask("Stop the action?", "Stop after the step that is running", then=stop)

    def _stop_run(self) -> None:
        """Stop after the step that is running; the second time, without waiting for it."""
        state = self._acting.state
        if state is None or state.ended is not None:
            return
        if state.want_stop():
            self._acting.give_up()
        else:
            self._acting.stop("it was stopped at the console")
        self._draw_run(state)

    def _ask(self, question: str, yes: str, cancel: str = "", *, then: Callable[[str | None], None]) -> None:
        from tui.screens.ask import AskScreen

        if not isinstance(self.screen, AskScreen):
            self.push_screen(AskScreen(question, yes, cancel), then)

    def _get_password(self, title: str) -> bool:
        """In the run's thread: has sudo ask on the terminal."""
        from tui.actions.sudo_password import ask_on_terminal, wait_for_password

        ask = partial(ask_on_terminal, self.suspend, title)
        return wait_for_password(self.call_later, ask, lambda: self._is_leaving)

    # Leaving

    def begin_acting(self) -> None:
        """When the screen is there: hears of a terminal that goes away."""
        self._hangups.watch(asyncio.get_running_loop())

    def _hang_up(self, why: str) -> None:
        self._is_leaving = True
        self._acting.stop(why)
        self.exit()

    def _stop_waiting_for_terminal(self) -> None:
        if isinstance(self._driver, TerminalDriver):
            self._driver.leave()

    def on_terminal_driver_gone(self) -> None:
        """The terminal has gone without a signal."""
        self._hang_up(TERMINAL_GONE)

    @property
    def is_stuck(self) -> bool:
        """Whether output still waits for a terminal that takes none; Python itself would wait for it."""
        return isinstance(self._driver, TerminalDriver) and self._driver.is_stuck

    @property
    def _what_runs(self) -> str:
        """What runs here and would end with gdrtop, in two words; "" where nothing does."""
        return "An action" if self._is_acting else ""

    async def action_quit(self) -> None:
        """Quit; ask first where something runs."""
        from tui.screens.ask import CANCEL, YES

        def answered(answer: str | None) -> None:
            if answer == YES:
                self._leave()
            elif answer == CANCEL:
                self._cancel_running()

        if self._is_leaving:
            self.on_run_screen_stop_wanted()
        elif running := self._what_runs:
            self._ask(
                f"{running} is running. Stop it and quit gdrtop?",
                "Stop it, then quit",
                "Stop it, and stay in gdrtop",
                then=answered,
            )
        else:
            self._leave()

    def _cancel_running(self) -> None:
        """Stop what `_what_runs` names, without quitting."""
        state = self._acting.state
        if state is not None and not state.is_stopping:
            self._stop_run()

    def _leave(self) -> None:
        """Quit; where an action runs, after the step that is running."""
        state = self._acting.state
        if state is None or not self._is_acting:
            self.exit()
            return
        if not self._is_leaving:
            self._is_leaving = state.is_leaving = True
            if not state.is_stopping:
                state.want_stop()
            self._acting.stop("gdrtop was quit")
            self._show_console(state)
            self._draw_run(state)

    def end_acting(self) -> None:
        """When the screen has gone."""
        self._is_leaving = True
        self._acting.hush()
        if not self._acting.is_running:
            self._hangups.forget()

    def end_actions(self) -> None:
        """After the screen has gone: waits for the step under way, not longer than a step may take."""
        try:
            if self._acting.is_running:
                self._wait_for_step()
        finally:
            self._hangups.forget()

    def _wait_for_step(self) -> None:
        from tui.actions.runner import STEP_SECONDS

        self._is_leaving = True
        self._acting.stop("gdrtop was quit")
        with suppress(OSError, AttributeError):
            print(
                "gdrtop: waiting for the running step to end (Ctrl-C: stop waiting)",
                file=sys.stderr,
                flush=True,
            )
        try:
            self._acting.wait(STEP_SECONDS + _WAIT_BEYOND_STEP_SECONDS)
        except KeyboardInterrupt:
            self._acting.give_up()
            self._acting.wait(_WAIT_BEYOND_STEP_SECONDS)
