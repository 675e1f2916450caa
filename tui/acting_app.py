"""The part of the application that acts: the actions' screens, the run under way, leaving in order."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.screen import Screen

from tui.acting import TELLING_SECONDS, Acting
from tui.actions_state import ActionsState
from tui.hangups import Hangups
from tui.screens.doctor import DoctorScreen

if TYPE_CHECKING:
    from textual.command import Provider

    from probes.examination import Examination
    from probes.host import Host
    from probes.origin import Origin
    from probes.plan import Plan
    from probes.plans.offers import Offer
    from tui.actions.audit import PastRun
    from tui.doctor_state import DoctorState
    from tui.run_state import RunState
    from tui.sampler import Examined, Sampler
    from tui.screens.actions import ActionsScreen
    from tui.screens.confirm import ConfirmScreen
    from tui.screens.history import HistoryScreen
    from tui.screens.overview import OverviewScreen

REST_SECONDS = 10.0  # a read under way may never end; the kernel then refuses to unload the driver
_WAIT_BEYOND_STEP_SECONDS = 10.0
S = TypeVar("S", bound=Screen[Any])


def _actions_provider() -> type[Provider]:
    from tui.palette import ActionsProvider

    return ActionsProvider


class ActingApp(App[None]):
    """Offers actions, has them confirmed, run and looked at; everything that reads is the heir's."""

    COMMANDS = App.COMMANDS | {_actions_provider}
    BINDINGS = [  # noqa: RUF012 - Textual's own type
        Binding("x", "actions", "Actions", tooltip="What can be done about it", id="actions"),
    ]

    _sampler: Sampler
    _doctor: DoctorState
    _overview: OverviewScreen

    def __init__(self, origin: Origin, read_only: bool) -> None:
        super().__init__()
        self._origin = origin
        self.actions_state = ActionsState()
        self._host: Host | None = None
        self._acting = Acting(lambda: self._host, read_only, self.call_later)
        self._hangups = Hangups(self._hang_up)
        self._probed_at = 0.0
        self._is_leaving = False
        self._wanted: tuple[str, Screen[Any]] | None = (
            None  # an action whose plan somebody waits for, and where
        )
        self._offers_taken = asyncio.Event()

    # What could be done

    def action_actions(self) -> None:
        """To the console of a run under way; else to the list of actions, or back from it."""
        from tui.screens.actions import ActionsScreen
        from tui.screens.run import RunScreen

        state, screen = self._acting.state, self.screen
        if state is not None and not state.was_seen and not self._is_console(screen, state):
            self._show_console(state)
            return
        if isinstance(screen, RunScreen):
            self.pop_screen()
        elif isinstance(self.screen, ActionsScreen):
            self.pop_screen()
            return
        self._bring(ActionsScreen, lambda: ActionsScreen(self.actions_state))
        self._ask_offers()

    def _bring(self, kind: type[S], make: Callable[[], S]) -> None:
        """Goes back to a screen that lies below, or opens it."""
        if any(isinstance(screen, kind) for screen in self.screen_stack):
            while not isinstance(self.screen, kind):
                self.pop_screen()
        else:
            self.push_screen(make())

    def _shown(self, kind: type[S]) -> list[S]:
        return [screen for screen in self.screen_stack if isinstance(screen, kind)]

    def _ask_offers(self) -> None:
        examination = self._doctor.examination
        self.actions_state.begin()
        if examination is None or examination.node.taken_at < self._probed_at:
            self._sampler.ask_examination()
            return
        take = partial(self._take_offers, examination)
        self._acting.offers(examination, self._doctor.findings, take, self._fail_offers)

    async def renew_offers(self) -> None:
        """Asks for the offers, and waits until they are there."""
        self._offers_taken.clear()
        self._ask_offers()
        await self._offers_taken.wait()

    def _take_offers(self, examination: Examination, told: tuple[tuple[Offer, ...], str]) -> None:
        self.actions_state.take(told[0], examination, told[1])
        self._offers_taken.set()
        self._draw_actions()
        if self._wanted is not None:
            (name, screen), self._wanted = self._wanted, None
            if self.screen is screen:  # who has gone elsewhere meanwhile wants something else
                self._confirm(self.actions_state.offer(name), examination)

    def _fail_offers(self, what: str) -> None:
        self.actions_state.fail(what)
        self._draw_actions()
        if self._wanted is not None:
            self._wanted = None
            self.notify(what, severity="error", markup=False)

    def _draw_actions(self) -> None:
        from tui.screens.actions import ActionsScreen

        for screen in self._shown(ActionsScreen):
            screen.draw()

    def on_actions_screen_wanted(self) -> None:
        """The actions' screen asks for an examination."""
        self._sampler.ask_examination()

    def on_actions_screen_chosen(self, message: ActionsScreen.Chosen) -> None:
        """An action of the list is to be looked at."""
        self.action_act(message.offer)

    def on_doctor_screen_fix_wanted(self, message: DoctorScreen.FixWanted) -> None:
        """A finding's fix is to be looked at."""
        self.action_act(f"fix:{message.finding}")

    def action_act(self, name: str) -> None:
        """Shows the plan of the action of this id, on the node as it is."""
        self._wanted = name, self.screen
        self._ask_offers()

    def _confirm(self, offer: Offer | None, examination: Examination) -> None:
        if offer is None:
            self.notify("There is nothing to be done here by a command.", markup=False)
            return
        prepared = self._acting.prepared(offer, examination)
        if isinstance(prepared, str):
            self.notify(f"{offer.title}: {prepared}", markup=False)
            return
        from tui.confirm_state import ConfirmState
        from tui.screens.confirm import ConfirmScreen

        self.push_screen(ConfirmScreen(ConfirmState(prepared, self._origin)))

    # What was done

    def action_history(self) -> None:
        """Shows what was run."""
        from tui.history_state import HistoryState
        from tui.screens.history import HistoryScreen

        state = HistoryState(self._overview.hostname)

        def draw() -> None:
            for screen in self._shown(HistoryScreen):
                screen.draw()

        def take(runs: tuple[PastRun, ...]) -> None:
            state.take(runs)
            draw()

        def fail(what: str) -> None:
            state.fail(what)
            draw()

        self._bring(HistoryScreen, lambda: HistoryScreen(state))
        self._acting.history(take, fail)

    def on_history_screen_undo_wanted(self, message: HistoryScreen.UndoWanted) -> None:
        """A past run is to be taken back."""
        examination, screen = self._doctor.examination, self.screen
        if examination is None:
            self.notify("The node has not been examined yet: once more in a moment.", markup=False)
            self._sampler.ask_examination()
            return

        def take(offer: Offer) -> None:
            if self.screen is screen:
                self._confirm(offer, examination)

        self._acting.undo_of(
            message.run, take, lambda what: self.notify(what, severity="error", markup=False)
        )

    # Doing it

    def on_confirm_screen_confirmed(self, message: ConfirmScreen.Confirmed) -> None:
        """Runs what was confirmed."""
        from tui.run_state import RunState
        from tui.screens.run import RunScreen
        from widgets.change_drawing import Judged

        examination = self._doctor.examination
        if self._is_acting or examination is None:
            self.notify("Another action is under way: x shows it.", severity="warning", markup=False)
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
        from tui.screens.run import RunScreen

        if state.ended is not None and not isinstance(self.screen, RunScreen):
            self.notify(f"{state.ended.outcome.value}: x shows it", title=state.prepared.title, markup=False)

    def _draw_run(self, state: RunState) -> None:
        from tui.screens.run import RunScreen

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
        from tui.screens.actions import ActionsScreen
        from widgets.change_drawing import Judged

        state = self._acting.state
        if report.looked_again and state is not None:
            examination = report.examination
            judged = None if examination is None else Judged(examination.verdict, self._doctor.findings)
            state.looked_again(judged, report.failure)
            self._draw_run(state)
        if report.examination is None:
            self._fail_offers(report.failure)
        elif self._wanted is not None or not self._offers_taken.is_set() or self._shown(ActionsScreen):
            self._ask_offers()

    def _show_console(self, state: RunState) -> None:
        from tui.screens.run import RunScreen

        if any(self._is_console(screen, state) for screen in self.screen_stack):
            while not self._is_console(self.screen, state):
                self.pop_screen()
        else:
            self.push_screen(RunScreen(state))

    def _is_console(self, screen: Screen[Any], state: RunState) -> bool:
        from tui.screens.run import RunScreen

        return isinstance(screen, RunScreen) and screen.state is state

    def on_run_screen_stop_wanted(self) -> None:
        """The run is to end after the step under way; wanted again, without waiting for that."""
        state = self._acting.state
        if state is None or state.ended is not None:
            return
        if state.want_stop():
            self._acting.give_up()
        else:
            self._acting.stop("it was stopped at the console")
        self._draw_run(state)

    def _get_password(self, title: str) -> bool:
        """In the run's thread: has sudo ask on the terminal."""
        from tui.sudo_password import ask_on_terminal, wait_for_password

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

    async def action_quit(self) -> None:
        """Leaves; where an action runs, after the step under way."""
        state = self._acting.state
        if state is None or not self._is_acting:
            self.exit()
            return
        if not self._is_leaving:
            self._is_leaving = state.is_leaving = True
            state.want_stop()
            self._acting.stop("gdrtop was left")
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
        self._acting.stop("gdrtop was left")
        with suppress(OSError, AttributeError):
            print(
                "gdrtop: waiting for the step under way to end; Ctrl-C: no longer",
                file=sys.stderr,
                flush=True,
            )
        try:
            self._acting.wait(STEP_SECONDS + _WAIT_BEYOND_STEP_SECONDS)
        except KeyboardInterrupt:
            self._acting.give_up()
            self._acting.wait(_WAIT_BEYOND_STEP_SECONDS)

    # The palette

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """What the palette offers beside the actions."""
        yield from super().get_system_commands(screen)
        yield SystemCommand("Actions", "What can be done about it", self.action_actions)
        yield SystemCommand("History", "What was run on this node, and taking it back", self.action_history)
        yield SystemCommand("Doctor", "What is wrong, why, and what to do", self.action_doctor)

    def action_doctor(self) -> None:
        """Shows what is wrong with the node."""
        if not isinstance(self.screen, DoctorScreen):
            self._bring(DoctorScreen, lambda: DoctorScreen(self._doctor))
