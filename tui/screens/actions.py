"""The actions: all that could be done about this node, and what keeps the rest from being possible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Input

from widgets.lines import Run, Tone, rows_of
from widgets.lines_view import LinesView

if TYPE_CHECKING:
    from tui.actions_state import ActionsState


class ActionsScreen(Screen[None]):
    """The list of actions, and below it the selected one."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        # Before the focused pane's own keys for scrolling.
        Binding(
            "down",
            "select(1)",
            "Select",
            key_display="↑↓",
            tooltip="Select an action",
            priority=True,
            id="next",
        ),
        Binding("up", "select(-1)", "Select", show=False, priority=True, id="previous"),
        Binding("j", "select(1)", "Select", show=False, id="next_j"),
        Binding("k", "select(-1)", "Select", show=False, id="previous_k"),
        Binding("enter", "choose", "Look and run", tooltip="The whole plan; nothing runs yet", id="choose"),
        Binding(
            "slash", "filter", "Filter", key_display="/", tooltip="Only what contains a word", id="filter"
        ),
        Binding("H", "app.history", "History", tooltip="What was run, and taking it back", id="history"),
        Binding("r,f5", "again", "Again", tooltip="Examine the node again", id="again"),
        Binding("pagedown", "page(1)", "Page", show=False, id="page_down"),
        Binding("pageup", "page(-1)", "Page", show=False, id="page_up"),
        Binding("escape", "leave", "Back", id="back"),
    ]

    class Wanted(Message):
        """The node is to be examined."""

    @dataclass
    class Chosen(Message):
        """An action is to be looked at, and perhaps run."""

        offer: str

    def __init__(self, state: ActionsState) -> None:
        super().__init__()
        self._state = state

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

    def on_mount(self) -> None:
        """Draws what is known already."""
        self.query_one("#word", Input).value = self._state.word
        self.query_one("#word").display = bool(self._state.word)
        self._view("offers").focus()
        self.draw()

    def on_lines_view_resized(self) -> None:
        """Draws anew for the pane's width."""
        self.draw()

    def _view(self, name: str) -> LinesView:
        return self.query_one(f"#{name}", LinesView)

    def draw(self) -> None:
        """Draws what is known."""
        if not self.is_mounted:
            return
        listed, selected = self._view("offers"), self._view("selected")
        self._view("summary").show(self._state.summary(self.size.width))
        if listed.room:
            listed.show(self._state.list_lines(listed.room))
            row = rows_of(listed.lines).get(self._state.selected)
            if row is not None:
                listed.scroll_to_row(max(0, row - 1))  # a heading above it is seen
                listed.scroll_to_row(row)
        if selected.room:
            selected.show(self._state.detail_lines(selected.room) or [(Run("", Tone.DIM),)])

    # Keys

    def action_select(self, step: int) -> None:
        """Selects the action below or above."""
        self._state.select(step)
        self._view("selected").scroll_to(y=0, animate=False)
        self.draw()

    def action_choose(self) -> None:
        """Shows the whole plan of the selected action, or why there is none."""
        if self._state.selected:
            self.post_message(self.Chosen(self._state.selected))

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
        self._view("offers").focus()

    def action_again(self) -> None:
        """Examines the node again."""
        self._state.begin()
        self.draw()
        self.post_message(self.Wanted())

    def action_page(self, step: int) -> None:
        """Scrolls the selected action by a page."""
        selected = self._view("selected")
        (selected.action_page_down if step > 0 else selected.action_page_up)()

    def action_leave(self) -> None:
        """Gives the word up, then leaves."""
        word = self.query_one("#word", Input)
        if word.display:
            word.value = ""
            self._state.filter("")
            self._leave_filter()
            self.draw()
        else:
            self.dismiss()
