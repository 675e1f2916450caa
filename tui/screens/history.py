"""The history: what was run on this node and how it ended, and taking it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer

from widgets.lines import Run, Tone, rows_of
from widgets.lines_view import LinesView

if TYPE_CHECKING:
    from tui.actions.audit import PastRun
    from tui.history_state import HistoryState


class HistoryScreen(Screen[None]):
    """The list of past runs, the newest first, and below it the selected one step by step."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        # Before the focused pane's own keys for scrolling.
        Binding(
            "down",
            "select(1)",
            "Select",
            key_display="↑↓",
            tooltip="Select a run",
            priority=True,
            id="next",
        ),
        Binding("up", "select(-1)", "Select", show=False, priority=True, id="previous"),
        Binding("j", "select(1)", "Select", show=False, id="next_j"),
        Binding("k", "select(-1)", "Select", show=False, id="previous_k"),
        Binding("u", "undo", "Take back", tooltip="The plan that takes this run back", id="undo"),
        Binding("pagedown", "page(1)", "Page", show=False, id="page_down"),
        Binding("pageup", "page(-1)", "Page", show=False, id="page_up"),
        Binding("escape,H", "leave", "Back", id="back"),
    ]

    @dataclass
    class UndoWanted(Message):
        """A past run is to be taken back."""

        run: PastRun

    def __init__(self, state: HistoryState) -> None:
        super().__init__()
        self.state = state

    def compose(self) -> ComposeResult:
        """List and details."""
        with Vertical(id="history"):
            yield LinesView("History · UTC", id="runs")
            yield LinesView("Steps", id="steps")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Says that the log is being read."""
        self._view("runs").focus()
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
        runs, steps = self._view("runs"), self._view("steps")
        if runs.room:
            runs.show(self.state.list_lines(runs.room))
            row = rows_of(runs.lines).get(self.state.selected)
            if row is not None:
                runs.scroll_to_row(row)
        if steps.room:
            steps.show(self.state.detail_lines(steps.room) or [(Run("", Tone.DIM),)])

    # Keys

    def action_select(self, step: int) -> None:
        """Selects the run below or above."""
        self.state.select(step)
        self._view("steps").scroll_to(y=0, animate=False)
        self.draw()

    def action_undo(self) -> None:
        """Asks for the plan that takes the selected run back."""
        if self.state.run is not None:
            self.post_message(self.UndoWanted(self.state.run))

    def action_page(self, step: int) -> None:
        """Scrolls the steps by a page."""
        steps = self._view("steps")
        (steps.action_page_down if step > 0 else steps.action_page_up)()

    def action_leave(self) -> None:
        """Leaves."""
        self.dismiss()
