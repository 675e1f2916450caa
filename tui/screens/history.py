"""The history: what was run on this node and how it ended, and taking it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Footer

from tui.history_state import HistoryState
from tui.screens.lists import PAGE_KEYS, ListScreen, select_keys
from widgets.lines_view import LinesView

if TYPE_CHECKING:
    from tui.actions.audit import PastRun


class HistoryScreen(ListScreen[HistoryState]):
    """The list of past runs, the newest first, and below it the selected one step by step."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        *select_keys("Select a run"),
        Binding("u", "undo", "Take back", tooltip="The plan that takes this run back", id="undo"),
        *PAGE_KEYS,
        Binding("escape,H", "leave", "Back", id="back"),
    ]

    LIST = "runs"
    DETAILS = "steps"

    @dataclass
    class UndoWanted(Message):
        """A past run is to be taken back."""

        run: PastRun

    def compose(self) -> ComposeResult:
        """List and details."""
        with Vertical(id="history"):
            yield LinesView("History · UTC", id="runs")
            yield LinesView("Steps", id="steps")
        yield Footer(show_command_palette=False)

    def action_undo(self) -> None:
        """Asks for the plan that takes the selected run back."""
        if self._state.run is not None:
            self.post_message(self.UndoWanted(self._state.run))
