"""The NCCL screen: the logs of the jobs on this node, and what the selected one says."""

from __future__ import annotations

from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input

from tui.screens import save_and_copy
from tui.screens.key_footer import KeyFooter
from tui.screens.keys import bind, leave_keys
from tui.screens.list_screen import FILTER_KEY, REFRESH_KEY, ListScreen, static_view
from tui.screens.nccl.state import NcclState
from widgets.base.lines_view import LinesView

FOLLOW_SECONDS = 1.0


class NcclScreen(ListScreen[NcclState]):
    """The list of logs; Enter opens the selected one, and it is followed as it grows."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("file", "type_path"),
        FILTER_KEY,
        bind("write", "write"),
        bind("ras", "app.ras"),
        REFRESH_KEY,
        *leave_keys("nccl"),
    ]
    LIST = "logs"
    DETAILS = "log"

    @dataclass
    class OpenRequested(Message):
        """Follow the log with this key."""

        key: str

    @dataclass
    class PathTyped(Message):
        """Follow a file that the user named."""

        path: str

    class SearchRequested(Message):
        """Search for the logs of the jobs again."""

    class MoreRequested(Message):
        """Read what is new in the followed log."""

    def compose(self) -> ComposeResult:
        """Compose summary, list, log and the inputs."""
        yield static_view("summary")
        with Vertical(id="nccl"):
            yield LinesView("Logs", id="logs")
            yield LinesView("Next run", id="log")
        yield Input(placeholder="A word in the line. Esc: clear", id="word")
        yield Input(placeholder="Path of a log. Esc: cancel", id="path", max_length=4096)
        yield KeyFooter()

    def on_mount(self) -> None:
        """Show what is known, and follow the log."""
        self._word.value = self._state.word
        self._word.display = bool(self._state.word)
        self._path.display = False
        self.set_interval(FOLLOW_SECONDS, self.follow)

    def follow(self) -> None:
        """Ask for what is new."""
        if self._state.opened:
            self.post_message(self.MoreRequested())

    @property
    def _word(self) -> Input:
        return self.query_one("#word", Input)

    @property
    def _path(self) -> Input:
        return self.query_one("#path", Input)

    def _draw_panes(self) -> None:
        self.query_one("#summary", LinesView).show(self._state.summary(self.size.width))
        self._details.set_title(self._state.detail_title())
        super()._draw_panes()

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable Write if there is something to write."""
        if action == "write":
            return self._state.followed is not None
        return super().check_action(action, parameters)

    def action_open(self) -> None:
        """Follow the selected log, and show only it."""
        if self._state.selected:
            self.post_message(self.OpenRequested(self._state.selected))
            self._details.scroll_to(y=0, animate=False)
        super().action_open()

    def show_opened(self) -> None:
        """Show only the log that is followed."""
        self._set_opened(True)
        self.draw()

    def action_refresh(self) -> None:
        """Search again."""
        self.post_message(self.SearchRequested())

    def action_write(self) -> None:
        """Write what the log says to a new file in the current directory."""
        save_and_copy.save(self, "gdrtop-nccl", self._state.text())

    def action_type_path(self) -> None:
        """Ask for the path of a log."""
        self._path.display = True
        self.set_focus(self._path)

    def action_filter(self) -> None:
        """Show the input of the filter."""
        self._word.display = True
        self.set_focus(self._word)

    def on_input_changed(self, changed: Input.Changed) -> None:
        """Show only lines that contain the word."""
        if changed.input is self._word:
            self._state.filter(changed.value)
            self.draw()

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        """Open the typed file, or keep the filter."""
        if submitted.input is self._path:
            path = submitted.value.strip()
            self._leave_path()
            if path:
                self.post_message(self.PathTyped(path))
        else:
            self._leave_filter()

    def _leave_path(self) -> None:
        self._path.value = ""
        self._path.display = False
        self._focus_pane()

    def _leave_filter(self) -> None:
        self._word.display = bool(self._state.word)
        self._focus_pane()

    def _focus_pane(self) -> None:
        (self._details if self.has_class("opened") else self._list).focus()

    def action_leave(self) -> None:
        """Close the prompt, else clear the filter, else go back to the list, else leave the screen."""
        if self._path.display:
            self._leave_path()
        elif self._word.display:
            self._word.value = ""
            self._state.filter("")
            self._leave_filter()
            self.draw()
        else:
            super().action_leave()
