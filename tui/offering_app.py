"""The part of the application that offers actions: their list, their plans, and what was run before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.screen import Screen

from tui.acting import Acting
from tui.actions_state import ActionsState
from tui.terminal import TerminalDriver

if TYPE_CHECKING:
    from textual.command import Provider

    from probes.examination import Examination
    from probes.host import Host
    from probes.origin import Origin
    from probes.plans.offers import Offer
    from tui.actions.audit import PastRun
    from tui.doctor_state import DoctorState
    from tui.sampler import Sampler
    from tui.screens.actions import ActionsScreen
    from tui.screens.doctor import DoctorScreen
    from tui.screens.history import HistoryScreen
    from tui.screens.overview import OverviewScreen

S = TypeVar("S", bound=Screen[Any])
# Of Textual's own: ? is the help, a number key shows a panel alone, and a maximized one hides the verdict.
_NOT_OURS = ("Keys", "Maximize", "Minimize")


def _actions_provider() -> type[Provider]:
    from tui.palette import ActionsProvider

    return ActionsProvider


class OfferingApp(App[None]):
    """Lists actions and shows their plans; what reads the node is the heir's."""

    COMMANDS = App.COMMANDS | {_actions_provider}
    BINDINGS = [  # noqa: RUF012 - Textual's own type
        # First, so that no narrow footer cuts it off.
        Binding("question_mark,f1,h", "help", "Help", tooltip="Keys and what the words mean", id="help"),
        Binding("x", "actions", "Actions", tooltip="What can be done about it", id="actions"),
        Binding("H", "history", "History", show=False, id="history"),
    ]

    _sampler: Sampler
    _doctor: DoctorState
    _overview: OverviewScreen

    def __init__(self, origin: Origin, read_only: bool) -> None:
        super().__init__(driver_class=TerminalDriver)
        self._origin = origin
        self.actions_state = ActionsState()
        self._host: Host | None = None
        self._acting = Acting(lambda: self._host, read_only, self.call_later)
        self._probed_at = 0.0
        self._wanted: tuple[str, Screen[Any]] | None = (
            None  # an action whose plan somebody waits for, and where
        )
        self._offers_taken = asyncio.Event()
        self._offers_taken.set()  # nobody waits for them

    def action_actions(self) -> None:
        """To the list of actions, or back from it."""
        from tui.screens.actions import ActionsScreen

        if isinstance(self.screen, ActionsScreen):
            self.pop_screen()
        else:
            self._bring(ActionsScreen, lambda: ActionsScreen(self.actions_state))
            self._ask_offers()

    # What could be done

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
        else:
            self._ask_offers_of(examination)

    def _ask_offers_of(self, examination: Examination) -> None:
        take = partial(self._take_offers, examination)
        self._acting.offers(examination, self._doctor.findings, take, self._fail_offers)

    async def renew_offers(self) -> None:
        """Asks for the offers, and waits until they are there."""
        self._offers_taken.clear()
        self._ask_offers()
        await self._offers_taken.wait()

    def _renew_offers(self, examination: Examination) -> None:
        """There is a newer examination: the offers of it, where somebody sees them or waits for them."""
        from tui.screens.actions import ActionsScreen

        if self._wanted is not None or not self._offers_taken.is_set() or self._shown(ActionsScreen):
            self._ask_offers_of(examination)

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
        self._offers_taken.set()
        self._draw_actions()
        if self._wanted is not None:
            self._wanted = None
            self.notify(what, severity="error", markup=False)

    def _draw_actions(self) -> None:
        from tui.screens.actions import ActionsScreen

        for screen in self._shown(ActionsScreen):
            screen.draw()

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

        def take(told: tuple[tuple[PastRun, ...], tuple[str, ...]]) -> None:
            state.take(*told)
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

    # The palette

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """What the palette offers beside the actions."""
        for command in super().get_system_commands(screen):
            if command.title not in _NOT_OURS:
                yield command
        yield SystemCommand("Actions", "What can be done about it", self.action_actions)
        yield SystemCommand("History", "What was run on this node, and taking it back", self.action_history)
        yield SystemCommand("Doctor", "What is wrong, why, and what to do", self.action_doctor)

    def action_help_quit(self) -> None:
        """Ctrl-C where it has nothing to stop: Textual would name another key than the footer."""
        self.notify("q quits.", markup=False)

    def action_doctor(self) -> None:
        """Shows what is wrong with the node."""
        from tui.screens.doctor import DoctorScreen

        if not isinstance(self.screen, DoctorScreen):
            self._bring(DoctorScreen, lambda: DoctorScreen(self._doctor))
