"""The head of a screen: the verdict, and what is running, as other parts of gdrtop report it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.screen import Screen

from probes.base.origin import Origin
from tui.screens.overview import head as head_drawing
from tui.screens.overview.head import HeadState
from widgets.base.lines import Line
from widgets.base.lines_view import LinesView

if TYPE_CHECKING:
    from tui.screens.overview.state import OverviewState


class HeadScreen(Screen[None]):
    """A screen with the head in its first rows."""

    def __init__(self, origin: Origin) -> None:
        super().__init__()
        self._head = HeadState(origin)
        self._state: OverviewState | None = None

    def compose_head(self) -> ComposeResult:
        """Yield the rows of the head."""
        verdict = LinesView(id="verdict")
        verdict.can_focus = False
        yield verdict

    def show_pace(self, pace: str) -> None:
        """Show the interval, or that readings have stopped."""
        self._change_head(pace=pace)

    def show_recording(self, state: str) -> None:
        """Show how far a recording of this node is; "" if there is none."""
        self._change_head(recording=state)

    def show_action(self, state: str) -> None:
        """Show how far an action is; "" if none is running."""
        self._change_head(action=state)

    def show_test(self, state: str) -> None:
        """Show how far a bandwidth test is; "" if none is running."""
        self._change_head(test=state)

    def show_silence(self, seconds: float, is_slow: bool = False) -> None:
        """Show how long a node that is slow or silent takes to answer; 0: it answers."""
        self._change_head(silence=float(int(seconds)), is_slow=is_slow)

    def _change_head(self, **fields: str | float | bool) -> None:
        head = replace(self._head, **fields)  # type: ignore[arg-type]
        if head != self._head:
            self._head = head
            if self.is_mounted:
                self.draw_head()

    @property
    def status(self) -> Line:
        """What is running now, and whether the node answers; other screens show it too."""
        return self._head.status()

    @property
    def hostname(self) -> str:
        """The node's host name; "" while it is unknown."""
        return self._state.hostname if self._state else ""

    def draw_head(self) -> int:
        """Draw the head and return how many rows it has, at most two."""
        if not self.children:  # not composed yet, or removed while a last reading came in
            return 0
        state, width = self._state, self.size.width
        verdict, line = (state.verdict, state.verdict_line(width)) if state is not None else (None, ())
        lines = head_drawing.draw(self._head.head(self.hostname, verdict, line), width)
        self.query_one("#verdict", LinesView).show(lines)
        return len(lines)
