"""The settings of a bandwidth test, and below them the tests that gdrtop would run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.message import Message
from textual.widgets import Input

from tui.screens import save_and_copy
from tui.screens.head import HeadView
from tui.screens.key_footer import KeyFooter
from tui.screens.keys import bind, bind_pair, leave_keys
from tui.screens.list_screen import ZOOM_KEY, PanesScreen, static_view
from widgets.base.lines import rows_of
from widgets.base.lines_view import LinesView

if TYPE_CHECKING:
    from tui.screens.bandwidth_setup.state import BandwidthSetupState

_END = 1 << 20


class BandwidthSetupScreen(PanesScreen):
    """Change settings by keys; Enter runs the tests, and asks first where running jobs would be affected."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("open", "start", label="Run"),
        *bind_pair("change", "change"),
        bind("peer", "name_peer"),
        bind("copy", "copy"),
        ZOOM_KEY,
        *leave_keys("bandwidth"),
    ]
    CONDITIONAL = ("start", "change", "name_peer", "copy")

    class Changed(Message):
        """The settings have changed. The tests must be planned again."""

    class StartRequested(Message):
        """Request to run the tests, after a check of what they would affect."""

    def __init__(self, state: BandwidthSetupState) -> None:
        super().__init__()
        self.state = state

    def compose(self) -> ComposeResult:
        yield HeadView("Bandwidth")
        yield static_view("summary")
        yield LinesView("Settings", id="settings")
        yield LinesView("Planned tests", id="planned")
        question = LinesView(id="question")
        question.can_focus = False
        yield question
        yield Input(placeholder="Host name or address of the peer. Esc cancels", id="peer", max_length=300)
        yield KeyFooter()

    def on_mount(self) -> None:
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
        self.draw()

    def draw(self) -> None:
        """Draw the panes, once they exist."""
        if not self.is_mounted:
            return
        self.query_one("#summary", LinesView).show(self.state.summary())
        self._settings.display = not self.state.refusal
        if self._settings.room:
            self._settings.show(self.state.settings())
            row = rows_of(self._settings.lines).get(self.state.chosen.selected)
            if row is not None:
                self._settings.scroll_to_row(row)
        if self._planned.room:
            self._planned.show(self.state.lines(self._planned.room))
        self.query_one("#question", LinesView).show([self.state.question])
        self._refresh_changed_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("start", "change"):
            return not self.state.refusal
        if action == "name_peer":
            return self.state.chosen.has_peer
        return bool(self.state.peer_command) if action == "copy" else True

    def why_not(self, action: str) -> str:
        if action in ("start", "change(1)", "change(-1)"):
            return f"no test can run here: {self.state.refusal}."
        reasons = {"name_peer": "this test needs no peer.", "copy": "these tests need no command on a peer."}
        return reasons.get(action, "")

    # Keys

    def action_move(self, how: str) -> None:
        """Select another row, or scroll the lower pane."""
        if self._planned.has_focus:
            super().action_move(how)
            return
        steps = {"up": -1, "down": 1, "page_up": -_END, "page_down": _END, "first": -_END, "last": _END}
        self.state.chosen.select(steps[how])
        self.draw()

    def on_lines_view_picked(self, picked: LinesView.Picked) -> None:
        if picked.view is self._settings:
            self.state.chosen.selected = picked.id
            self.draw()

    def action_change(self, step: int) -> None:
        if self.state.change(step):
            self._planned.scroll_to(y=0, animate=False)
            self.draw()
            self.post_message(self.Changed())
        elif self.state.chosen.selected == "peer":
            self.action_name_peer()

    def action_name_peer(self) -> None:
        """Ask for the peer's name."""
        self._peer.value = self.state.chosen.peer
        self._peer.display = True
        self.set_focus(self._peer)

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
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
        """Run the tests; ask for the peer's name first if it is missing."""
        if self.state.chosen.wants_peer:
            self.action_name_peer()
        else:
            self.post_message(self.StartRequested())

    def action_copy(self) -> None:
        save_and_copy.copy(self, self.state.peer_command)

    def action_leave(self) -> None:
        """Close the input, then stop the check before a run, then close the screen."""
        if self._peer.display:
            self._leave_input()
        elif self.state.is_checking:
            self.state.cancel_run()
            self.draw()
            self.post_message(self.Changed())  # nothing was planned during the check
        else:
            super().action_leave()

    def action_close(self) -> None:
        """Leave at once, without running anything."""
        self.state.cancel_run()
        super().action_close()
