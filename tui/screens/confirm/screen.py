"""A plan before it runs: what it affects, its steps, and the question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.message import Message
from textual.widgets import Input

from tui.screens import save_and_copy
from tui.screens.ask import EnterDelay
from tui.screens.head import HeadView
from tui.screens.key_footer import KeyFooter, typing_items
from tui.screens.keys import bind, leave_keys
from tui.screens.list_screen import PanesScreen, scroll, static_view
from widgets.base.lines import Run, Tone
from widgets.base.lines_view import LinesView

if TYPE_CHECKING:
    from probes.checks.judgment import Judgment
    from tui.actions.dispatcher import Prepared
    from tui.screens.confirm.state import ConfirmState


class ConfirmScreen(PanesScreen):
    """A plan, which can be run, copied or written to a file.

    Where the host name must be typed, its field has the focus at once, so that no letter of it is a command.
    The app's commands are dead here while there is something to run (`is_question`).
    """

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("open", "confirm", label="Run it"),
        bind("yes", "run", show=False),
        bind("rehearse", "rehearse"),
        bind("copy", "copy"),
        bind("write", "write"),
        bind("all", "unfold"),
        *leave_keys(),
    ]

    @dataclass
    class Confirmed(Message):
        """Run the plan; `typed` is the host name that the user typed, if it was asked for."""

        prepared: Prepared
        typed: str

    @dataclass
    class RehearsalRequested(Message):
        """Run the plan on a simulated twin of the node."""

        prepared: Prepared
        screen: ConfirmScreen

    def __init__(self, state: ConfirmState) -> None:
        super().__init__()
        self._state = state
        self._is_confirmed = False
        self._delay = EnterDelay()

    def compose(self) -> ComposeResult:
        yield HeadView("Plan")
        yield static_view("summary")
        yield LinesView("Plan · nothing has been run", id="plan")
        yield static_view("question")
        if self._state.word:
            yield Input(placeholder=f"Type the host name {self._state.word} to run it", id="typed")
        yield KeyFooter(typing_items("Run it", tab="Plan"))

    def on_mount(self) -> None:
        """Focus the field of the host name, else the plan."""
        (self._typed if self._state.word else self._plan).focus()

    @property
    def is_question(self) -> bool:
        """Whether there is a plan that Enter would run."""
        return self._state.can_run

    @property
    def _plan(self) -> LinesView:
        return self.query_one("#plan", LinesView)

    @property
    def _typed(self) -> Input:
        return self.query_one("#typed", Input)

    def on_lines_view_resized(self) -> None:
        if self._plan.room:
            self._plan.show(self._state.lines(self._plan.room))
        self.query_one("#summary", LinesView).show([self._state.title_line])
        tone = Tone.WARNING if self._state.word or not self._state.can_run else Tone.DIM
        self.query_one("#question", LinesView).show([(Run(self._state.question, tone),)])
        self._delay.note_drawn()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "rehearse":
            return self._state.can_rehearse
        if action == "unfold":
            return self._state.can_unfold
        return self._state.can_run if action in ("run", "confirm") else True

    def why_not(self, action: str) -> str:
        if action in ("run", "confirm"):
            return self._state.question
        reasons = {
            "rehearse": "only a running or simulated node can be rehearsed.",
            "unfold": "every step is shown.",
        }
        return reasons.get(action, "")

    # Keys

    def action_move(self, how: str) -> None:
        """Scroll the plan, also while the host name is typed."""
        scroll(self._plan, how)

    def action_confirm(self) -> None:
        """Run it, unless Enter was pressed before the plan could be read."""
        if self._delay.is_over:
            self.action_run()

    def action_run(self) -> None:
        if self._state.word:
            self._typed.focus()
        elif self._state.can_run:
            self._confirm()

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        """Run it if the name is right, else say so in the line above the field."""
        self._state.typed = submitted.value
        if self._state.is_confirmed:
            self._confirm()
        elif submitted.value:
            wrong = f"That is not the host name ({self._state.word}). Nothing was run."
            self.query_one("#question", LinesView).show([(Run(wrong, Tone.BAD),)])

    def _confirm(self) -> None:
        if not self._is_confirmed:  # also if the key was pressed twice
            self._is_confirmed = True
            self.post_message(self.Confirmed(self._state.prepared, self._state.typed))

    def action_unfold(self) -> None:
        """Show each of many equal steps, or only the first again."""
        self._state.is_unfolded = not self._state.is_unfolded
        self.on_lines_view_resized()

    # The rehearsal

    def action_rehearse(self) -> None:
        """Run the plan on a simulated twin first; this node stays as it is."""
        if self._state.can_rehearse and not self._state.is_rehearsing:
            self.post_message(self.RehearsalRequested(self._state.prepared, self))

    def show_rehearsing(self) -> None:
        """Show that the rehearsal runs."""
        self._state.is_rehearsing = True
        self._redraw()

    def show_rehearsal(self, before: Judgment, after: Judgment, not_rehearsed: tuple[str, ...]) -> None:
        """Show what to expect afterwards, above the steps."""
        self._state.set_rehearsal(before, after, not_rehearsed)
        self._redraw()

    def show_rehearsal_failure(self, message: str) -> None:
        """Show why the plan could not be rehearsed."""
        self._state.fail_rehearsal(message)
        self._redraw()

    def _redraw(self) -> None:
        if self.is_mounted:
            self._plan.scroll_home(animate=False)
            self.on_lines_view_resized()

    def action_copy(self) -> None:
        save_and_copy.copy(self, self._state.script(), " as a shell script")

    def action_write(self) -> None:
        save_and_copy.write(self, {self._state.script_name: self._state.script()})
