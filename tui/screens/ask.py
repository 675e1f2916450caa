"""The question before something runs, stops or is sent: one form for all of them, shown over a screen.

It says what will happen and whom that affects. Enter does it, Esc does not, and the keys of the screen below
are dead. A plan (tui/screens/confirm.py) has the same form on a screen of its own, as it lists every command.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from textual.app import ComposeResult
from textual.screen import ModalScreen

from tui.screens.key_footer import KeyFooter
from tui.screens.keys import KEYS, bind, move_keys
from tui.screens.list_screen import scroll
from widgets.base.lines import Line, Run, Tone, wrapped
from widgets.base.lines_view import LinesView

YES, CANCEL, NO = "yes", "cancel", ""
# Enter opens most questions. A second one within this time was pressed before the question could be read.
ENTER_DELAY_SECONDS = 0.5


class EnterDelay:
    """When a question was drawn first, and whether Enter answers it yet."""

    def __init__(self) -> None:
        self._drawn_at: float | None = None

    def note_drawn(self) -> None:
        """Note that the question is on the screen."""
        if self._drawn_at is None:
            self._drawn_at = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Return whether the question could be read."""
        return self._drawn_at is not None and time.monotonic() - self._drawn_at >= ENTER_DELAY_SECONDS


def sentences(*texts: str) -> Callable[[int], list[Line]]:
    """Return what draws these texts as paragraphs, warnings marked."""

    def draw(width: int) -> list[Line]:
        lines: list[Line] = []
        for text in texts:
            is_warning = text.startswith("Warning") or text.endswith("?")
            lines += [*wrapped(text, width, Tone.WARNING if is_warning else Tone.PLAIN), ()]
        return lines

    return draw


class AskScreen(ModalScreen[str]):
    """A question. The result is YES, CANCEL (if offered) or NO."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("open", "confirm", label="Confirm"),
        bind("yes", "answer('yes')", show=False),
        bind("back", "answer('')", label="Cancel"),
        bind("quit", "answer('')", show=False),
        bind("cancel", "answer('cancel')"),
        bind("exit", "exit", show=False, priority=True),
        bind("repaint", "app.repaint", show=False),
        *move_keys(show=False),
    ]

    def __init__(
        self,
        draw: Callable[[int], Sequence[Line]],
        yes: str,
        no: str,
        cancel: str = "",
        exit_answer: str = NO,
    ) -> None:
        """Ask what `draw` draws for a width; `yes`, `no` and `cancel` say what the answers do.

        `exit_answer` is that of the keys that quit gdrtop.
        """
        super().__init__()
        self._draw, self._exit_answer = draw, exit_answer
        self._answers = (("open", yes), ("cancel", cancel), ("back", no))
        self._offers_cancel = bool(cancel)
        self._delay = EnterDelay()

    def compose(self) -> ComposeResult:
        yield LinesView(id="question")
        yield KeyFooter()

    def on_mount(self) -> None:
        self.query_one(LinesView).focus()

    def on_lines_view_resized(self) -> None:
        view = self.query_one(LinesView)
        lines = list(self._draw(view.room))
        for name, words in self._answers:
            if words:
                lines.append((Run(f"{KEYS[name].display:<8}", Tone.TITLE), Run(words)))
        view.show(lines)
        self._delay.note_drawn()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable CANCEL only if it is offered."""
        return self._offers_cancel if parameters == (CANCEL,) else True

    def action_move(self, how: str) -> None:
        scroll(self.query_one(LinesView), how)

    def action_confirm(self) -> None:
        """Close with YES, unless Enter was pressed before the question could be read."""
        if self._delay.is_over:
            self.dismiss(YES)

    def action_answer(self, answer: str) -> None:
        self.dismiss(answer)

    def action_exit(self) -> None:
        """Close with the answer of the keys that quit gdrtop."""
        self.dismiss(self._exit_answer)
