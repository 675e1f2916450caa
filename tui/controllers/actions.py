"""The part of the application that offers actions: their list, their plans, and what was run before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from textual.app import App
from textual.screen import Screen

from tui.controllers.action_worker import Acting
from tui.runtime.terminal import TerminalDriver
from tui.screens.actions.state import ActionsState
from tui.screens.keys import bind
from widgets.base.lines import sentence

if TYPE_CHECKING:
    from probes.base.origin import Origin
    from probes.host.protocol import Host
    from probes.plans.catalogue import Offer
    from probes.snapshot.examination import Examination
    from tui.actions.audit_log import PastRun
    from tui.runtime.sampler import Sampler
    from tui.screens.actions.screen import ActionsScreen
    from tui.screens.doctor.screen import DoctorScreen
    from tui.screens.doctor.state import DoctorState
    from tui.screens.history.screen import HistoryScreen
    from tui.screens.overview.screen import OverviewScreen

S = TypeVar("S", bound=Screen[Any])


class OfferingApp(App[None]):
    """List actions and show their plans; what reads the node is the heir's."""

    ENABLE_COMMAND_PALETTE = True
    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("help", "help"),
        bind("actions", "actions"),
        bind("history", "history"),
        bind("overview", "overview", show=False),
    ]

    _sampler: Sampler
    _doctor: DoctorState
    _overview: OverviewScreen

    def __init__(self, origin: Origin, read_only: bool) -> None:
        # The terminal's own sixteen colors. Said here, because NO_COLOR is applied before a theme is set.
        super().__init__(driver_class=TerminalDriver, ansi_color=True)
        self._origin = origin
        self.actions_state = ActionsState()
        self._host: Host | None = None
        self._acting = Acting(lambda: self._host, read_only, self.call_later)
        self._probed_at = 0.0
        self._wanted: tuple[str, Screen[Any]] | None = None  # an action whose plan is awaited, and where
        self._offers_taken = asyncio.Event()
        self._offers_taken.set()  # nobody waits for them

    def action_actions(self) -> None:
        """Show the list of actions."""
        from tui.screens.actions.screen import ActionsScreen

        self._bring(ActionsScreen, lambda: ActionsScreen(self.actions_state))
        self._ask_offers()

    def action_overview(self) -> None:
        """Go back to the overview."""
        while len(self.screen_stack) > 1:
            self.pop_screen()

    # What could be done

    def _bring(self, kind: type[S], make: Callable[[], S]) -> None:
        """Go back to a screen that lies below, or open it."""
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
        """Ask for the offers, and wait until they are there."""
        self._offers_taken.clear()
        self._ask_offers()
        await self._offers_taken.wait()

    def _renew_offers(self, examination: Examination) -> None:
        """There is a newer examination: the offers of it, where somebody sees them or waits for them."""
        from tui.screens.actions.screen import ActionsScreen

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
        from tui.screens.actions.screen import ActionsScreen

        for screen in self._shown(ActionsScreen):
            screen.draw()

    def on_actions_screen_chosen(self, message: ActionsScreen.Chosen) -> None:
        """An action of the list is to be looked at."""
        self.action_act(message.offer)

    def on_doctor_screen_fix_wanted(self, message: DoctorScreen.FixWanted) -> None:
        """A finding's fix is to be looked at."""
        self.action_act(f"fix:{message.finding}")

    def action_act(self, name: str) -> None:
        """Show the plan of the action of this id, on the node as it is."""
        self._wanted = name, self.screen
        self._ask_offers()

    def _confirm(self, offer: Offer | None, examination: Examination) -> None:
        if offer is None:
            self.notify("There is nothing to do here by a command.", markup=False)
            return
        prepared = self._acting.prepared(offer, examination)
        if isinstance(prepared, str):
            if self.actions_state.offer(offer.id) is not None:
                self._show_offer(offer.id)
            else:  # the fix of a finding or the undo of a run
                self.notify(sentence(prepared), severity="warning", markup=False)
            return
        from tui.screens.confirm.screen import ConfirmScreen
        from tui.screens.confirm.state import ConfirmState

        self.push_screen(ConfirmScreen(ConfirmState(prepared, self._origin)))

    def _show_offer(self, name: str) -> None:
        """Show why an action is not possible: where it stands in the list."""
        from tui.screens.actions.screen import ActionsScreen

        self.actions_state.filter("")
        self.actions_state.selected = name
        self._bring(ActionsScreen, lambda: ActionsScreen(self.actions_state))
        self._draw_actions()

    # What was done

    def action_history(self) -> None:
        """Show what was run."""
        from tui.screens.history.screen import HistoryScreen
        from tui.screens.history.state import HistoryState

        state = HistoryState(self._overview.hostname, self._origin)

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
            self.notify("Still checking the node. Try again in a moment.", markup=False)
            self._sampler.ask_examination()
            return

        def take(offer: Offer) -> None:
            if self.screen is screen:
                self._confirm(offer, examination)

        self._acting.undo_of(
            message.run, take, lambda what: self.notify(what, severity="error", markup=False)
        )

    # The palette

    def action_command_palette(self) -> None:
        """Open the palette with gdrtop's own commands."""
        from tui.controllers.palette import Palette

        if not isinstance(self.screen, Palette):
            self.push_screen(Palette())

    def action_doctor(self) -> None:
        """Show what is wrong with the node."""
        from tui.screens.doctor.screen import DoctorScreen

        self._bring(DoctorScreen, lambda: DoctorScreen(self._doctor))
