"""The console of a run: what its steps print, how they end, and what has changed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.app import ComposeResult

from probes.checks.judgment import Judgment
from tui.actions.events import (
    Printed,
    RunBegan,
    RunEnded,
    RunEvent,
    RunOutcome,
    StepBegan,
    StepEnded,
    lines_of,
    mark_of,
)
from tui.actions.manual_steps import runnable
from tui.files.new_file import file_word
from tui.screens import save_and_copy
from tui.screens.head import HeadView
from tui.screens.key_footer import KeyFooter
from tui.screens.keys import KEYS, bind, leave_keys
from tui.screens.list_screen import PanesScreen, static_view
from tui.screens.request import Request
from widgets.base.lines import Line, Run, Tone, folded, plain, wrapped
from widgets.base.lines_view import LinesView
from widgets.doctor.changes import draw_change

if TYPE_CHECKING:
    from tui.actions.dispatcher import Prepared

SAVED_WIDTH = 120


class RunState:
    """A run; only `add_events`, `note_recheck` and `want_stop` change it."""

    def __init__(self, prepared: Prepared, before: Judgment) -> None:
        self.prepared = prepared
        self.steps = len(runnable(prepared.plan))
        self.step = 0
        self.ended: RunEnded | None = None
        self.is_over = False  # ended, and the node was checked again
        self.was_seen = False  # its end, on the screen
        self.is_leaving = False
        self._began = False
        self._before = before
        self._stops = 0
        self._events: list[RunEvent] = []
        self._outcomes: dict[int, RunOutcome] = {}
        self._after: Judgment | None = None
        self._failure = ""

    # Changes

    def add_events(self, events: Sequence[RunEvent]) -> None:
        """Add events."""
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
                self.is_over = not self.needs_recheck

    @property
    def needs_recheck(self) -> bool:
        """Return whether the run has ended and may have changed the node."""
        return self.ended is not None and self._began

    def note_recheck(self, after: Judgment | None, failure: str = "") -> None:
        """Note the node after the run, or why it could not be checked."""
        self._after, self._failure, self.is_over = after, failure, True

    def want_stop(self) -> bool:
        """Note a request to stop; return whether it is not the first one."""
        self._stops += 1
        return self._stops > 1

    @property
    def is_stopping(self) -> bool:
        """Return whether a stop was requested."""
        return self._stops > 0

    # Drawing

    def head(self, seconds: float) -> list[Line]:
        """Draw the title and the progress; `seconds` is the time since the running step began."""
        return [(Run(self.prepared.title, Tone.TITLE),), (*self._marks(), *self._status(seconds))]

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

    def _status(self, seconds: float) -> Line:
        if self.ended is not None:
            checking = "" if self.is_over else " · checking the node again …"
            mark = mark_of(self.ended.outcome)
            return (mark, Run(f" {self.ended.summary}", Tone.TITLE), Run(checking))
        if self._stops > 1:
            return (Run(" no longer waiting for this step", Tone.WARNING),)
        if self._stops:
            leaving = ", then gdrtop quits" if self.is_leaving else ""
            again = f"{KEYS['cancel'].display}: stop waiting for it"
            return (Run(f" stopping after this step{leaving} ({again})", Tone.WARNING),)
        return (Run(f" {self.progress} · {seconds:.0f} s"),) if self.step else (Run(" starting …", Tone.DIM),)

    @property
    def progress(self) -> str:
        """Return "step 2/4"."""
        return f"step {self.step}/{self.steps}" if self.step else "starting"

    @property
    def word(self) -> str:
        """Return what the overview's first line shows; "" once the end was seen."""
        if self.ended is None:
            return f"ACTION {self.progress}"
        return "" if self.was_seen else f"ACTION {plain((mark_of(self.ended.outcome),))}"

    @property
    def event_count(self) -> int:
        """Return the number of events."""
        return len(self._events)

    def lines(self, width: int, first: int = 0) -> list[Line]:
        """Draw the events from number `first` on."""
        lines: list[Line] = []
        for event in self._events[first:]:
            drawn = lines_of(event, width)
            if isinstance(event, Printed):
                drawn = [part for line in drawn for part in folded(line, width)]
            lines.extend(drawn)
        return lines

    def change(self, width: int) -> list[Line]:
        """Draw what the run has changed, once that is known."""
        if self._failure:
            text = f"The node could not be checked again: {self._failure}"
            return [(), *wrapped(text, width, Tone.WARNING)]
        return [] if self._after is None else [(), *draw_change(self._before, self._after, width)]

    # Saving

    def text(self) -> str:
        """Return the whole console as plain text."""
        lines = [line for event in self._events for line in lines_of(event, SAVED_WIDTH)]
        head = [f"{self.prepared.title}, on {self.prepared.node}"]
        return "\n".join([*head, *(plain(line) for line in (*lines, *self.change(SAVED_WIDTH))), ""])

    @property
    def file_name(self) -> str:
        """Return the name of the text file, without the time."""
        return f"gdrtop-{file_word(self.prepared.action)}-{file_word(self.prepared.node)}"


class RunScreen(PanesScreen):
    """The console of a run. Leaving it does not stop the run."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("cancel", "stop", label="Stop"),
        bind("write", "save"),
        *leave_keys(),
    ]

    def __init__(self, state: RunState) -> None:
        super().__init__()
        self.state = state
        self._drawn = 0  # events
        self._step = 0
        self._step_began = time.monotonic()

    def compose(self) -> ComposeResult:
        yield HeadView("Console")
        yield static_view("summary")
        yield LinesView("Console", id="console")
        yield KeyFooter()

    def on_mount(self) -> None:
        self._view("console").focus()
        self.set_interval(1.0, self._draw_head)

    def on_lines_view_resized(self) -> None:
        """Draw all events again for the pane's width."""
        console = self._view("console")
        if console.room:
            self._drawn = self.state.event_count
            console.show([*self.state.lines(console.room), *self.state.change(console.room)])
            console.scroll_end(animate=False)
            self._draw_head()

    def draw(self) -> None:
        """Add the new events."""
        console = self._view("console") if self.is_mounted else None
        if console is None or not console.room:
            return
        if self.state.is_over:
            self.on_lines_view_resized()
        else:
            console.append(self.state.lines(console.room, self._drawn))
            self._drawn = self.state.event_count
            self._draw_head()
        if self.state.ended is not None:  # the footer no longer shows Stop
            self.refresh_bindings()

    def _draw_head(self) -> None:
        if self.state.step != self._step:
            self._step, self._step_began = self.state.step, time.monotonic()
        seconds = time.monotonic() - self._step_began
        self._view("summary").show(self.state.head(seconds))
        if self.state.is_over and self.is_current and not self.state.was_seen:
            self.post_message(Request("run_seen"))

    def why_not(self, action: str) -> str | None:
        return "the action has ended." if action == "stop" and self.state.ended is not None else None

    # Keys

    def action_stop(self) -> None:
        """Ask to stop after the running step; the second time, to stop waiting for it."""
        self.post_message(Request("stop_run"))

    def action_save(self) -> None:
        save_and_copy.save(self, self.state.file_name, txt=self.state.text())
