"""The RAS screen: ask NCCL which ranks answer and which one is behind, one question a key."""

from __future__ import annotations

from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from probes.host.ras import DIAGNOSTICS, STATUS, VERBOSE_STATUS
from tui.screens import save_and_copy
from tui.screens.key_footer import KeyFooter
from tui.screens.keys import bind, leave_keys
from tui.screens.list_screen import REFRESH_KEY, ListScreen, static_view
from tui.screens.ras.state import RasState
from widgets.base.lines_view import LinesView

_COMMANDS = {"status": STATUS, "verbose": VERBOSE_STATUS, "diagnostics": DIAGNOSTICS}


class RasScreen(ListScreen[RasState]):
    """The ports of the jobs, and what the selected one answered."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("open", "ask('status')", label="Ask"),
        bind("verbose", "ask('verbose')"),
        bind("ras_events", "app.ras_events"),
        bind("diagnostics", "ask('diagnostics')"),
        bind("write", "write"),
        REFRESH_KEY,
        *leave_keys("ras"),
    ]
    LIST = "ports"
    DETAILS = "answer"

    @dataclass
    class AskRequested(Message):
        """Send a command to a port, after the confirmation that it needs."""

        port: str
        command: str

    class SearchRequested(Message):
        """Search for the jobs again."""

    def compose(self) -> ComposeResult:
        """Compose summary, ports and answer."""
        yield static_view("summary")
        with Vertical(id="ras"):
            yield LinesView("Ports", id="ports")
            yield LinesView("Answer", id="answer")
        yield KeyFooter()

    def _draw_panes(self) -> None:
        self.query_one("#summary", LinesView).show(self._state.summary())
        super()._draw_panes()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the keys that do nothing now."""
        if action == "ask":
            is_recorded = self._state.is_recorded and parameters == ("diagnostics",)
            return bool(self._state.selected) and not self._state.asking and not is_recorded
        if action == "app.ras_events":
            return not self._state.is_recorded
        return super().check_action(action, parameters)

    def action_ask(self, what: str) -> None:
        """Ask the selected port."""
        if self._state.selected:
            self.post_message(self.AskRequested(self._state.selected, _COMMANDS[what]))

    def action_refresh(self) -> None:
        """Search again."""
        self.post_message(self.SearchRequested())

    def action_write(self) -> None:
        """Write the answer to a new file in the current directory."""
        save_and_copy.save(self, "gdrtop-ras", self._state.text())
