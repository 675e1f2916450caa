"""A question that one key answers, shown over a screen."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.screen import ModalScreen

from tui.screens.keys import bind
from widgets.base.lines import Line, Run, Tone, wrapped
from widgets.base.lines_view import LinesView

YES, CANCEL, NO = "yes", "cancel", ""


class AskScreen(ModalScreen[str]):
    """Ask before something is stopped. The result is YES, CANCEL (if offered) or NO."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("yes", "answer('yes')"),
        bind("exit", "answer('yes')", priority=True),
        bind("cancel", "answer('cancel')"),
        bind("quit", "answer('')"),
        bind("back", "answer('')"),
    ]

    def __init__(self, question: str, yes: str, cancel: str = "") -> None:
        """Ask this question; `yes` and `cancel` say what the keys y and K do."""
        super().__init__()
        self._question, self._yes, self._cancel = question, yes, cancel

    def compose(self) -> ComposeResult:
        """Compose one pane."""
        yield LinesView()

    def on_lines_view_resized(self) -> None:
        """Draw the question for the pane's width."""
        view = self.query_one(LinesView)
        lines: list[Line] = [*wrapped(self._question, view.room, Tone.WARNING), ()]
        for key, words in (("y", self._yes), ("K", self._cancel), ("Esc", "Continue, stop nothing")):
            if words:
                lines.append((Run(f"{key:<5}", Tone.TITLE), Run(words)))
        view.show(lines)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable CANCEL only if it is offered."""
        return bool(self._cancel) if parameters == (CANCEL,) else True

    def action_answer(self, answer: str) -> None:
        """Close with this answer."""
        self.dismiss(answer)
