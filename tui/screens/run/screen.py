"""The console of a run: what its steps print, how they end, and what has changed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.message import Message

from tui.screens import save_and_copy
from tui.screens.key_footer import KeyFooter
from tui.screens.keys import bind, leave_keys
from tui.screens.list_screen import PanesScreen, static_view
from widgets.base.lines_view import LinesView

if TYPE_CHECKING:
    from tui.screens.run.state import RunState


class RunScreen(PanesScreen):
    """The console of a run. Leaving it does not stop the run."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("cancel", "stop", label="Stop"),
        bind("write", "save"),
        *leave_keys(),
    ]

    class StopRequested(Message):
        """Stop the run after the running step; if that was requested, do not wait for the step."""

    class EndSeen(Message):
        """The end of the run was on the screen."""

    def __init__(self, state: RunState) -> None:
        super().__init__()
        self.state = state
        self._drawn = 0  # events
        self._step = 0
        self._step_began = time.monotonic()

    def compose(self) -> ComposeResult:
        """Compose the progress and the console."""
        yield static_view("summary")
        yield LinesView("Console", id="console")
        yield KeyFooter()

    def on_mount(self) -> None:
        """Show the seconds of the running step."""
        self._pane.focus()
        self.set_interval(1.0, self._draw_head)

    @property
    def _pane(self) -> LinesView:
        return self.query_one("#console", LinesView)

    def on_lines_view_resized(self) -> None:
        """Draw all events again for the pane's width."""
        if not self._pane.room:
            return
        self._drawn = self.state.event_count
        self._pane.show(
            [*self.state.lines(self._pane.room), *self.state.change(self._pane.room)],
        )
        self._pane.scroll_end(animate=False)
        self._draw_head()

    def draw(self) -> None:
        """Add the new events."""
        if not self.is_mounted or not self._pane.room:
            return
        if self.state.is_over:
            self.on_lines_view_resized()
        else:
            self._pane.append(self.state.lines(self._pane.room, self._drawn))
            self._drawn = self.state.event_count
            self._draw_head()
        if self.state.ended is not None:  # the footer no longer shows Stop
            self.refresh_bindings()

    def _draw_head(self) -> None:
        if self.state.step != self._step:
            self._step, self._step_began = self.state.step, time.monotonic()
        seconds = time.monotonic() - self._step_began
        self.query_one("#summary", LinesView).show(self.state.head(seconds))
        if self.state.is_over and self.is_current and not self.state.was_seen:
            self.post_message(self.EndSeen())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable Stop after the end."""
        return self.state.ended is None if action == "stop" else True

    # Keys

    def action_stop(self) -> None:
        """Ask to stop after the running step; the second time, to stop waiting for it."""
        self.post_message(self.StopRequested())

    def action_save(self) -> None:
        """Write the console's text to a new file in the current directory."""
        save_and_copy.save(self, self.state.file_name, self.state.text())
