"""The doctor: what is wrong with the node, with evidence, cause and fix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Input

from widgets.lines import Line, Run, Tone, rows_of
from widgets.lines_view import LinesView

if TYPE_CHECKING:
    from tui.doctor_state import DoctorState


class DoctorScreen(Screen[None]):
    """The list of findings, and below it the selected one whole."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        # Before the focused pane's own keys for scrolling.
        Binding(
            "down",
            "select(1)",
            "Select",
            key_display="↑↓",
            tooltip="Select a finding",
            priority=True,
            id="next",
        ),
        Binding("up", "select(-1)", "Select", show=False, priority=True, id="previous"),
        Binding("j", "select(1)", "Select", show=False, id="next_j"),
        Binding("k", "select(-1)", "Select", show=False, id="previous_k"),
        Binding("f", "fix", "Fix", tooltip="The fix of this finding, step by step, to be run", id="fix"),
        Binding("e", "explain", "Explain", tooltip="What it means, in plain words", id="explain"),
        Binding("a", "all", "All", tooltip="Also what passed, or only what did not", id="all"),
        Binding(
            "slash", "filter", "Filter", key_display="/", tooltip="Only what contains a word", id="filter"
        ),
        Binding("r,f5", "again", "Again", tooltip="Examine the node again", id="again"),
        Binding("pagedown", "page(1)", "Page", show=False, id="page_down"),
        Binding("pageup", "page(-1)", "Page", show=False, id="page_up"),
        Binding("escape,d", "leave", "Back", id="back"),
    ]

    class Wanted(Message):
        """The node is to be examined."""

    @dataclass
    class FixWanted(Message):
        """The fix of a finding is to be looked at, and perhaps run."""

        finding: str

    def __init__(self, state: DoctorState) -> None:
        super().__init__()
        self._state = state

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
        self.query_one("#word").display = False
        self._view("findings").focus()
        self.draw()
        if self._state.examination is None:
            self.action_again()

    def on_lines_view_resized(self) -> None:
        """Draws anew for the pane's width."""
        self.draw()

    def _view(self, name: str) -> LinesView:
        return self.query_one(f"#{name}", LinesView)

    def draw(self) -> None:
        """Draws what is known."""
        if not self.is_mounted:
            return
        listed, details = self._view("findings"), self._view("details")
        self._view("summary").show(self._state.summary(self.size.width))
        if listed.room:
            listed.show(self._state.list_lines(listed.room))
            row = rows_of(listed.lines).get(self._state.selected)
            if row is not None:
                listed.scroll_to_row(row)
        if details.room:
            details.border_title = self._state.details_title
            lines: list[Line] = self._state.detail_lines(details.room)
            details.show(lines or [(Run("", Tone.DIM),)])

    # Keys

    def action_select(self, step: int) -> None:
        """Selects the finding below or above."""
        self._state.select(step)
        self._view("details").scroll_to(y=0, animate=False)
        self.draw()

    def action_fix(self) -> None:
        """Shows the fix as an action that can be run."""
        if self._state.selected:
            self.post_message(self.FixWanted(self._state.selected))

    def action_explain(self) -> None:
        """Shows what the finding means in plain words, or the whole finding again."""
        self._show("explanation")

    def _show(self, what: str) -> None:
        self._state.show(what)
        self._view("details").scroll_to(y=0, animate=False)
        self.draw()

    def action_all(self) -> None:
        """Lists all checks, or only those that found something or could not be made."""
        self._state.toggle_all()
        self.draw()

    def action_filter(self) -> None:
        """Asks for a word."""
        word = self.query_one("#word", Input)
        word.display = True
        word.focus()

    def on_input_changed(self, changed: Input.Changed) -> None:
        """Lists only what contains the word."""
        self._state.filter(changed.value)
        self.draw()

    def on_input_submitted(self) -> None:
        """Back to the list; the word stays."""
        self._leave_filter()

    def _leave_filter(self) -> None:
        self.query_one("#word", Input).display = bool(self._state.word)
        self._view("findings").focus()

    def action_again(self) -> None:
        """Examines the node again."""
        self._state.begin()
        self.draw()
        self.post_message(self.Wanted())

    def action_page(self, step: int) -> None:
        """Scrolls the finding by a page."""
        details = self._view("details")
        (details.action_page_down if step > 0 else details.action_page_up)()

    def action_leave(self) -> None:
        """Gives the word up, then the explanation, then leaves."""
        word = self.query_one("#word", Input)
        if word.display:
            word.value = ""
            self._state.filter("")
            self._leave_filter()
            self.draw()
        elif self._state.shows != "finding":
            self._show("finding")
        else:
            self.dismiss()
