"""The doctor: what is wrong with the node, with evidence, cause and fix."""

from __future__ import annotations

from dataclasses import dataclass

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Footer, Input

from tui.doctor_state import DoctorState
from tui.screens.lists import AGAIN_KEY, FILTER_KEY, PAGE_KEYS, ExaminedListScreen, select_keys
from widgets.lines_view import LinesView


class DoctorScreen(ExaminedListScreen[DoctorState]):
    """The list of findings, and below it the selected one whole."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        *select_keys("Select a finding"),
        Binding("f", "fix", "Fix", tooltip="The fix of this finding, step by step, to be run", id="fix"),
        Binding("e", "explain", "Explain", tooltip="What it means, in plain words", id="explain"),
        Binding("a", "all", "All", tooltip="Also what passed, or only what did not", id="all"),
        FILTER_KEY,
        AGAIN_KEY,
        *PAGE_KEYS,
        Binding("escape,d", "leave", "Back", id="back"),
    ]

    LIST = "findings"
    DETAILS = "details"

    @dataclass
    class FixWanted(Message):
        """The fix of a finding is to be looked at, and perhaps run."""

        finding: str

    def compose(self) -> ComposeResult:
        """Summary, list, details."""
        summary = LinesView(id="summary")
        summary.can_focus = False
        yield summary
        with Vertical(id="doctor"):
            yield LinesView("Findings", id="findings")
            yield LinesView("", id="details")
        yield Input(placeholder="a word of the id, the title or a device; Esc ends", id="word")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Asks for an examination where there is none."""
        if self._state.examination is None:
            self.action_again()

    def _draw_panes(self) -> None:
        if self._details.room:
            self._details.border_title = self._state.details_title
        super()._draw_panes()

    # Keys

    def action_fix(self) -> None:
        """Shows the fix as an action that can be run."""
        if self._state.selected:
            self.post_message(self.FixWanted(self._state.selected))

    def action_explain(self) -> None:
        """Shows what the finding means in plain words, or the whole finding again."""
        self._show("explanation")

    def _show(self, what: str) -> None:
        self._state.show(what)
        self._draw_from_top()

    def action_all(self) -> None:
        """Lists all checks, or only those that found something or could not be made."""
        self._state.toggle_all()
        self.draw()

    def action_leave(self) -> None:
        """Gives the word up, then the explanation, then leaves."""
        if not self._word.display and self._state.shows != "finding":
            self._show("finding")
        else:
            super().action_leave()
