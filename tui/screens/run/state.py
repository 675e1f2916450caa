"""One run of an action as its console shows it: its events so far, and what it has changed.

Knows nothing of Textual.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from probes.base.origin import Origin
from tui.actions.console_text import lines_of, mark_of
from tui.actions.events import Printed, RunBegan, RunEnded, RunEvent, RunOutcome, StepBegan, StepEnded
from tui.actions.manual_steps import runnable
from tui.screens.confirm.state import file_word, title_line
from widgets.base.lines import Line, Run, Tone, folded, plain, wrapped
from widgets.doctor.changes import Judged, draw_change

if TYPE_CHECKING:
    from tui.actions.dispatcher import Prepared

SAVED_WIDTH = 120


class RunState:
    """A run, current or ended; changes only by `take`, `looked_again` and what a person wants."""

    def __init__(self, prepared: Prepared, origin: Origin, before: Judged) -> None:
        self.prepared, self.origin = prepared, origin
        self.steps = len(runnable(prepared.plan))
        self.step = 0
        self.ended: RunEnded | None = None
        self.is_over = False  # ended, and the node was looked at again
        self.was_seen = False  # the end, on the screen
        self.is_leaving = False
        self._began = False
        self._before = before
        self._stops = 0
        self._events: list[RunEvent] = []
        self._outcomes: dict[int, RunOutcome] = {}
        self._after: Judged | None = None
        self._failure = ""

    # What happens

    def take(self, events: Sequence[RunEvent]) -> None:
        """Takes over what the run told."""
        for event in events:
            self._events.append(event)
            if isinstance(event, RunBegan):
                self._began = True
            elif isinstance(event, StepBegan):
                self.step = event.number
            elif isinstance(event, StepEnded):
                self._outcomes[event.number] = event.outcome
            elif isinstance(event, RunEnded):
                self.ended = event
                self.is_over = not self.wants_look

    @property
    def wants_look(self) -> bool:
        """Whether the node may be another than before."""
        return self.ended is not None and self._began

    def looked_again(self, after: Judged | None, failure: str = "") -> None:
        """The node was examined anew; or why it could not be."""
        self._after, self._failure, self.is_over = after, failure, True

    def want_stop(self) -> bool:
        """A person wants the end; whether this is more than the first time."""
        self._stops += 1
        return self._stops > 1

    @property
    def is_stopping(self) -> bool:
        """Whether a person wanted the end already."""
        return self._stops > 0

    # Drawing

    def head(self, seconds: float) -> list[Line]:
        """What runs, and how far it has come; `seconds` since the step under way was begun."""
        return [title_line(self.prepared, self.origin), (*self._marks(), *self._told(seconds))]

    def _marks(self) -> Line:
        runs: list[Run] = []
        for number in range(1, self.steps + 1):
            outcome = self._outcomes.get(number)
            mark = Run("·", Tone.DIM)
            if outcome is not None:
                mark = mark_of(outcome)
            elif number == self.step and self.ended is None:
                mark = Run("▸", Tone.TITLE)
            runs.extend([mark, Run(f"{number} ", Tone.PLAIN if number <= self.step else Tone.DIM)])
        return tuple(runs)

    def _told(self, seconds: float) -> Line:
        if self.ended is not None:
            told = "" if self.is_over else " · checking the node again …"
            return (mark_of(self.ended.outcome), Run(f" {self.ended.outcome.value}", Tone.TITLE), Run(told))
        if self._stops > 1:
            return (Run(" no longer waiting for this step", Tone.WARNING),)
        if self._stops:
            leaving = ", then gdrtop quits" if self.is_leaving else ""
            return (Run(f" stopping after this step{leaving} (K: stop waiting for it)", Tone.WARNING),)
        return (Run(f" {self.progress} · {seconds:.0f} s"),) if self.step else (Run(" starting …", Tone.DIM),)

    @property
    def progress(self) -> str:
        """As "step 2/4"."""
        return f"step {self.step}/{self.steps}" if self.step else "starting"

    @property
    def word(self) -> str:
        """What the overview's first line says of it; "" once its end was seen."""
        if self.ended is None:
            return f"ACTING {self.progress}"
        return "" if self.was_seen else f"ACTED {plain((mark_of(self.ended.outcome),))}"

    @property
    def told(self) -> int:
        """How many events there are."""
        return len(self._events)

    def lines(self, width: int, first: int = 0) -> list[Line]:
        """What it told, from event `first` on."""
        lines: list[Line] = []
        for event in self._events[first:]:
            some = lines_of(event, width)
            if isinstance(event, Printed):
                some = [piece for one in some for piece in folded(one, width)]
            lines.extend(some)
        return lines

    def change(self, width: int) -> list[Line]:
        """What it has changed, once that is known."""
        if self._failure:
            told = f"The node could not be checked again: {self._failure}"
            return [(), *wrapped(told, width, Tone.WARNING)]
        return [] if self._after is None else [(), *draw_change(self._before, self._after, width)]

    # Keeping

    def text(self) -> str:
        """All of it as plain text."""
        lines = [line for event in self._events for line in lines_of(event, SAVED_WIDTH)]
        head = [f"{self.prepared.title}, on {self.prepared.node}"]
        return "\n".join([*head, *(plain(one) for one in (*lines, *self.change(SAVED_WIDTH))), ""])

    @property
    def file_name(self) -> str:
        """A name for the text's file, but for the time."""
        return f"gdrtop-{file_word(self.prepared.action)}-{file_word(self.prepared.node)}"
