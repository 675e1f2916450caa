"""The actions: what gdrtop can do on this node, and why the rest is not possible."""

from __future__ import annotations

from tui.screens.actions.state import ActionsState
from tui.screens.keys import leave_keys
from tui.screens.list_screen import FILTER_KEY, REFRESH_KEY, ExaminedListScreen
from tui.screens.request import Request
from widgets.base.lines import rows_of


class ActionsScreen(ExaminedListScreen[ActionsState]):
    """The list of actions, with the selected one below."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        FILTER_KEY,
        REFRESH_KEY,
        *leave_keys("actions"),
    ]

    LIST = "offers"
    DETAILS = "selected"
    TITLES = ("Actions", "Actions", "Selected")
    FILTER = "A word in the title or the id. Esc: clear"

    def _show_selected(self) -> None:
        row = rows_of(self._list.lines).get(self._state.selected)
        if row:
            self._list.scroll_to_row(row - 1)  # so that a heading above it is visible
        super()._show_selected()

    # Keys

    def action_open(self) -> None:
        """Show the plan of the selected action, or why there is none."""
        if self._state.is_possible:
            self.post_message(Request("plan", self._state.selected))
        else:
            super().action_open()
