"""The actions: all that could be done about this node, and what keeps the rest from being possible."""

from __future__ import annotations

from dataclasses import dataclass

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Footer, Input

from tui.actions_state import ActionsState
from tui.screens.lists import AGAIN_KEY, FILTER_KEY, PAGE_KEYS, ExaminedListScreen, select_keys
from widgets.lines_view import LinesView


class ActionsScreen(ExaminedListScreen[ActionsState]):
    """The list of actions, and below it the selected one."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        *select_keys("Select an action"),
        Binding("enter", "choose", "Look and run", tooltip="The whole plan; nothing runs yet", id="choose"),
        FILTER_KEY,
        Binding("H", "app.history", "History", tooltip="What was run, and taking it back", id="history"),
        AGAIN_KEY,
        *PAGE_KEYS,
        Binding("escape", "leave", "Back", id="back"),
    ]

    LIST = "offers"
    DETAILS = "selected"

    @dataclass
    class Chosen(Message):
        """An action is to be looked at, and perhaps run."""

        offer: str

    def compose(self) -> ComposeResult:
        """Summary, list, the selected one."""
        summary = LinesView(id="summary")
        summary.can_focus = False
        yield summary
        with Vertical(id="actions"):
            yield LinesView("Actions", id="offers")
            yield LinesView("Selected", id="selected")
        yield Input(placeholder="a word of the id or the title; Esc ends", id="word")
        yield Footer(show_command_palette=False)

    def _scroll_list(self, row: int) -> None:
        super()._scroll_list(max(0, row - 1))  # a heading above it is seen
        super()._scroll_list(row)

    # Keys

    def action_choose(self) -> None:
        """Shows the whole plan of the selected action, or why there is none."""
        if self._state.selected:
            self.post_message(self.Chosen(self._state.selected))
