"""The doctor: what is wrong with the node, with impact, cause, evidence and fix."""

from __future__ import annotations

from tui.screens.doctor.state import DoctorState
from tui.screens.keys import bind, leave_keys
from tui.screens.list_screen import FILTER_KEY, REFRESH_KEY, ExaminedListScreen
from tui.screens.request import Request


class DoctorScreen(ExaminedListScreen[DoctorState]):
    """The list of findings, with the selected one below."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("fix", "fix"),
        bind("explain", "explain"),
        bind("all", "all"),
        FILTER_KEY,
        REFRESH_KEY,
        *leave_keys("doctor"),
    ]

    LIST = "findings"
    DETAILS = "details"
    TITLES = ("Doctor", "Findings", "")
    FILTER = "A word in the title, the id or a device name. Esc: clear"

    def on_mount(self) -> None:
        if self._state.examination is None:
            self.action_refresh()

    def _draw_panes(self) -> None:
        if self._details.room:
            self._details.set_title(self._state.details_title)
        super()._draw_panes()

    def why_not(self, action: str) -> str | None:
        is_explained = action == "explain" and self._state.is_finding
        if action not in ("fix", "explain") or is_explained or (action == "fix" and self._state.has_fix):
            return super().why_not(action)
        if not self._state.is_finding:
            return "select a finding first."
        return "gdrtop has no fix for this finding. Enter shows all of it."

    # Keys

    def action_fix(self) -> None:
        self.post_message(Request("fix", self._state.selected))

    def action_explain(self) -> None:
        self._show("explanation")

    def _show(self, what: str) -> None:
        self._state.show(what)
        self._draw_from_top()

    def action_all(self) -> None:
        self._state.toggle_all()
        self.draw()

    def action_leave(self) -> None:
        """Close the explanation, else the filter, else the screen."""
        if not self._word.display and self._state.shows != "finding":
            self._show("finding")
        else:
            super().action_leave()
