"""A series of bandwidth tests that runs or has ended: chart, rows, console, results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult

from tui.screens import save_and_copy
from tui.screens.head import HeadView
from tui.screens.key_footer import KeyFooter
from tui.screens.keys import bind, leave_keys
from tui.screens.list_screen import ZOOM_KEY, PanesScreen, static_view
from tui.screens.request import Request
from widgets.base.lines_view import LinesView

if TYPE_CHECKING:
    from tui.screens.bandwidth_run.state import SeriesState

_ROOM_FOR_ALL = 32  # lines from which the screen shows chart, rows and console together
_VIEWS = ("results", "console", "all")


class BandwidthRunScreen(PanesScreen):
    """Show a series; leaving the screen does not end it."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("cancel", "cancel"),
        bind("view", "view"),
        bind("skip", "skip"),
        bind("again", "again"),
        bind("write", "save"),
        bind("copy", "copy"),
        bind("baseline", "baseline"),
        ZOOM_KEY,
        *leave_keys("bandwidth"),
    ]
    CONDITIONAL = ("cancel", "skip", "again", "save", "copy", "baseline")

    def __init__(self, state: SeriesState) -> None:
        super().__init__()
        self.state = state
        self._shown = ""
        self._drawn = 0  # lines of the console

    def compose(self) -> ComposeResult:
        yield HeadView("Bandwidth")
        yield static_view("summary")
        yield static_view("chart", "Chart")
        yield LinesView("Rows", id="rows")
        yield LinesView("Console", id="lines")
        yield KeyFooter()

    def on_mount(self) -> None:
        self._show_view(_VIEWS[2] if self.size.height >= _ROOM_FOR_ALL else _VIEWS[0])
        self._view("rows").focus()
        self.set_interval(1.0, self._draw_summary)

    def _show_view(self, view: str) -> None:
        self._shown = view
        for name in _VIEWS:
            self.set_class(name == view, f"view-{name}")

    def on_lines_view_resized(self) -> None:
        self._drawn = 0
        self.draw()

    def on_resize(self) -> None:
        """Choose a view that fits the height, and draw the chart for it."""
        if self._shown == _VIEWS[2] and self.size.height < _ROOM_FOR_ALL:
            self._show_view(_VIEWS[0])
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Draw the panes; append only new lines to the console."""
        if not self.is_mounted:
            return
        chart, rows, lines = self._view("chart"), self._view("rows"), self._view("lines")
        with self.app.batch_update():
            if chart.room and chart.size.height:
                chart.show(self.state.chart(chart.room, chart.size.height))
            if rows.room:
                rows.set_title(self.state.table_title)
                rows.show(self.state.table(rows.room, rows.size.height))
            if lines.room:
                self._draw_console(lines)
        self._draw_summary()
        self._refresh_changed_bindings()

    def _draw_console(self, lines: LinesView) -> None:
        from tui.screens.bandwidth_run.state import MOST_LINES

        if not self._drawn or len(lines.lines) > 2 * MOST_LINES:
            lines.show(self.state.console.lines(lines.room))
            lines.scroll_end(animate=False)
        elif self._drawn < self.state.console.count:
            lines.append(self.state.console.lines(lines.room, self._drawn))
        self._drawn = self.state.console.count

    def _draw_summary(self) -> None:
        self._view("summary").show(self.state.summary(self.size.width))
        if self.state.ended is not None and self.is_current and not self.state.was_seen:
            self.post_message(Request("tests_seen"))

    def why_not(self, action: str) -> str | None:
        state = self.state
        if state.ended is None:
            reasons = {
                "skip": "" if state.number < len(state.series.tests) else "this is the last test.",
                "copy": "" if state.peer_command else "this test needs no command on a peer.",
                **dict.fromkeys(("again", "baseline"), "the tests are still running."),
            }
        else:
            reasons = {
                **dict.fromkeys(("cancel", "skip", "copy"), "the tests have ended."),
                "baseline": "" if state.measured else "nothing was measured.",
            }
        if not state.results:
            reasons["save"] = "there are no results yet."
        return reasons.get(action) or None

    # Keys

    def action_view(self) -> None:
        """Show chart and rows, the console, or all of them if there is room."""
        views = _VIEWS if self.size.height >= _ROOM_FOR_ALL else _VIEWS[:2]
        self._show_view(views[(views.index(self._shown) + 1) % len(views)])
        self._view("lines" if self._shown == _VIEWS[1] else "rows").focus()
        self._drawn = 0
        self.call_after_refresh(self.draw)

    def action_cancel(self) -> None:
        """Ask to stop the whole series, at both ends."""
        self.post_message(Request("cancel_tests"))

    def action_skip(self) -> None:
        self.post_message(Request("skip_test"))

    def action_again(self) -> None:
        self.post_message(Request("repeat_tests", self.state.series))

    def action_baseline(self) -> None:
        self.post_message(Request("save_baseline", self.state))

    def action_copy(self) -> None:
        save_and_copy.copy(self, self.state.peer_command)

    def action_save(self) -> None:
        save_and_copy.save(self, self.state.file_name, txt=self.state.text())
