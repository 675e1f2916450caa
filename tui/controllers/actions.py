"""List the actions, show their plans, and show what ran before."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from tui.controllers.action_run import ActionRunController
from tui.screens.actions.state import ActionsState
from widgets.base.lines import sentence

if TYPE_CHECKING:
    from textual.screen import Screen

    from probes.plans.catalogue import Offer
    from probes.snapshot.examination import Examination
    from tui.actions.audit_log import PastRun
    from tui.actions.dispatcher import Prepared
    from tui.controllers.context import AppContext
    from tui.runtime.reading_thread import Examined
    from tui.screens.confirm.screen import ConfirmScreen


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
        from tui.screens.confirm.screen import ConfirmScreen
        from tui.screens.confirm.state import ConfirmState

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

        def run() -> Rehearsal:
            return rehearse(host, examination, prepared.action, prepared.plan)

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

        self._context.run_in_thread(
            lambda: self.run.dispatcher.undo_of(run), apply, self._context.report_error
        )
