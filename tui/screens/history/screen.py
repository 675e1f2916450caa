"""The history: what gdrtop ran on this node, how it ended, and its undo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from tui.screens.history.state import HistoryState
from tui.screens.key_footer import KeyFooter
from tui.screens.keys import bind, leave_keys
from tui.screens.list_screen import ListScreen, static_view
from widgets.base.lines_view import LinesView

if TYPE_CHECKING:
    from tui.actions.audit_log import PastRun


class HistoryScreen(ListScreen[HistoryState]):
    """The list of past runs, newest first, with the steps of the selected one below."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("undo", "undo"),
        *leave_keys("history"),
    ]

    LIST = "runs"
    DETAILS = "steps"

    @dataclass
    class UndoRequested(Message):
        """Show the plan that undoes a past run."""

        run: PastRun

    def compose(self) -> ComposeResult:
        """Compose summary, list and details."""
        yield static_view("summary")
        with Vertical(id="history"):
            yield LinesView("Runs", id="runs")
            yield LinesView("Steps", id="steps")
        yield KeyFooter()

    def _draw_panes(self) -> None:
        self.query_one("#summary", LinesView).show(self._state.summary())
        super()._draw_panes()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable Undo if a run is selected."""
        return self._state.run is not None if action == "undo" else super().check_action(action, parameters)

    def action_undo(self) -> None:
        """Ask for the plan that undoes the selected run."""
        if self._state.run is not None:
            self.post_message(self.UndoRequested(self._state.run))
