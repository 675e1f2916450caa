"""What is to be measured: rows of settings, and below them all that follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.binding import Binding
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Input

from tui.screens import handing_over
from tui.screens.lists import PAGE_KEYS
from widgets.lines import rows_of
from widgets.lines_view import LinesView

if TYPE_CHECKING:
    from tui.bandwidth.setup_state import SetupState


class BandwidthSetupScreen(Screen[None]):
    """Settings changed by keys; Enter asks for a run, and is asked back where somebody would feel it."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        # Before the focused pane's own keys for scrolling.
        Binding(
            "down", "select(1)", "Row", key_display="↑↓", tooltip="Another row", priority=True, id="next"
        ),
        Binding("up", "select(-1)", "Row", show=False, priority=True, id="previous"),
        Binding("j", "select(1)", "Row", show=False, id="next_j"),
        Binding("k", "select(-1)", "Row", show=False, id="previous_k"),
        Binding(
            "right",
            "change(1)",
            "Value",
            key_display="←→",
            tooltip="Another value",
            priority=True,
            id="change",
        ),
        Binding("left", "change(-1)", "Value", show=False, priority=True, id="change_back"),
        Binding("enter", "start", "Run", tooltip="Run it; asks where somebody would feel it", id="start"),
        Binding("y", "confirm", "Run all the same", id="confirm"),
        Binding("p", "name_peer", "Peer", tooltip="Type the peer's name", id="name_peer"),
        Binding("c", "copy", "Copy", tooltip="Copy the peer's command", id="copy"),
        *PAGE_KEYS,
        Binding("escape", "leave", "Back", id="back"),
    ]

    class Changed(Message):
        """Other settings: what follows from them is to be planned."""

    class StartWanted(Message):
        """It is to be run; who would feel it has to be known first."""

    class Confirmed(Message):
        """It is to be run though somebody would feel it."""

    def __init__(self, state: SetupState) -> None:
        super().__init__()
        self.state = state

    def compose(self) -> ComposeResult:
        """Head, settings, what follows from them, and the place for the peer's name."""
        summary = LinesView(id="summary")
        summary.can_focus = False
        yield summary
        yield LinesView("Settings", id="settings")
        yield LinesView("What would be run", id="planned")
        question = LinesView(id="question")
        question.can_focus = False
        yield question
        yield Input(placeholder="host name or address of the peer; Esc ends", id="peer", max_length=300)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Shows the settings; nothing is typed yet."""
        self._peer.display = False
        self._settings.focus()
        self.post_message(self.Changed())

    @property
    def _settings(self) -> LinesView:
        return self.query_one("#settings", LinesView)

    @property
    def _planned(self) -> LinesView:
        return self.query_one("#planned", LinesView)

    @property
    def _peer(self) -> Input:
        return self.query_one("#peer", Input)

    def on_lines_view_resized(self) -> None:
        """Draws for the panes' width."""
        self.draw()

    def draw(self) -> None:
        """Draws what is known, once there are panes for it."""
        if not self.is_mounted:
            return
        self.query_one("#summary", LinesView).show(self.state.head())
        self._settings.display = not self.state.refusal
        if self._settings.room:
            self._settings.show(self.state.settings())
            row = rows_of(self._settings.lines).get(self.state.chosen.selected)
            if row is not None:
                self._settings.scroll_to_row(row)
        if self._planned.room:
            self._planned.show(self.state.lines(self._planned.room))
        self.query_one("#question", LinesView).show([self.state.question])
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only what has a meaning now is in the footer."""
        if action in ("select", "change") and self.is_mounted and self._peer.has_focus:
            return False  # the arrows are the typed text's
        if action == "confirm":
            return self.state.is_asking
        if action in ("start", "select", "change"):
            return not self.state.refusal and not (action == "start" and self.state.is_asking)
        if action == "name_peer":
            return self.state.chosen.has_peer
        return bool(self.state.for_peer()) if action == "copy" else True

    # Keys

    def action_select(self, step: int) -> None:
        """Another row."""
        self.state.chosen.select(step)
        self.draw()

    def action_change(self, step: int) -> None:
        """Another value of the row."""
        if self.state.change(step):
            self._planned.scroll_to(y=0, animate=False)
            self.draw()
            self.post_message(self.Changed())
        elif self.state.chosen.selected == "peer":
            self.action_name_peer()

    def action_name_peer(self) -> None:
        """Asks for the peer's name."""
        self._peer.value = self.state.chosen.peer
        self._peer.display = True
        self._peer.focus()

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        """Takes the name, where it is one."""
        why = self.state.set_peer(submitted.value)
        if why:
            self.notify(why, severity="warning", markup=False)
            return
        self._leave_input()
        self.draw()
        self.post_message(self.Changed())

    def _leave_input(self) -> None:
        self._peer.display = False
        self._settings.focus()

    def action_start(self) -> None:
        """Runs it, after a look at who would feel it; asks for the peer's name where that is missing."""
        if self.state.chosen.wants_peer:
            self.action_name_peer()
        else:
            self.post_message(self.StartWanted())

    def action_confirm(self) -> None:
        """Runs it though somebody would feel it."""
        if self.state.is_asking:
            self.post_message(self.Confirmed())

    def action_copy(self) -> None:
        """Copies the peer's command, by way of the terminal."""
        handing_over.copy(self, self.state.for_peer())

    def action_page(self, step: int) -> None:
        """Scrolls what would be run by a page."""
        (self._planned.action_page_down if step > 0 else self._planned.action_page_up)()

    def action_leave(self) -> None:
        """Gives the name up, then the question, then leaves."""
        if self._peer.display:
            self._leave_input()
        elif self.state.is_asking or self.state.is_looking:
            self.state.do_not_run()
            self.draw()
            self.post_message(self.Changed())  # of what came meanwhile nothing was planned
        else:
            self.dismiss()
