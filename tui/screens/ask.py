"""A question that one key answers, shown over a screen."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.screen import ModalScreen

from tui.screens.keys import bind, move_keys
from tui.screens.list_screen import scroll
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
        for key, words in (("y", self._yes), ("K", self._cancel), ("Esc", "Continue without stopping")):
            if words:
                lines.append((Run(f"{key:<5}", Tone.TITLE), Run(words)))
        view.show(lines)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable CANCEL only if it is offered."""
        return bool(self._cancel) if parameters == (CANCEL,) else True

    def action_answer(self, answer: str) -> None:
        """Close with this answer."""
        self.dismiss(answer)


class ConsentScreen(ModalScreen[str]):
    """Show what would be sent to a job and what it may do. The result is YES or NO; only y is a yes."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("yes", "answer('yes')"),
        bind("exit", "answer('')", priority=True),
        bind("quit", "answer('')"),
        bind("back", "answer('')"),
        *move_keys(),
    ]

    def __init__(self, texts: Sequence[str], yes: str) -> None:
        """Show these sentences; `yes` says what the key y does."""
        super().__init__()
        self._texts, self._yes = tuple(texts), yes

    def compose(self) -> ComposeResult:
        """Compose one pane."""
        yield LinesView()

    def on_lines_view_resized(self) -> None:
        """Draw the sentences for the pane's width."""
        view = self.query_one(LinesView)
        lines: list[Line] = []
        for text in self._texts:
            tone = Tone.WARNING if text.startswith("Warning") else Tone.PLAIN
            lines += [*wrapped(text, view.room, tone), ()]
        for key, words in (("y", self._yes), ("Esc", "Send nothing")):
            lines.append((Run(f"{key:<5}", Tone.TITLE), Run(words)))
        view.show(lines)

    def action_move(self, how: str) -> None:
        """Scroll the sentences."""
        scroll(self.query_one(LinesView), how)

    def action_answer(self, answer: str) -> None:
        """Close with this answer."""
        self.dismiss(answer)
