"""The apps of a fleet: the table of the nodes, and the dashboard of one of them, which goes back to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import on
from textual.message import Message

from tui.app import GdrtopApp
from tui.controllers.terminal_notices import TerminalNotices
from tui.runtime.background_task import call_in_thread
from tui.runtime.fleet_reader import FleetReader
from tui.screens.fleet import FleetScreen, FleetState
from tui.screens.head import change_head
from tui.screens.keys import bind
from tui.screens.request import Request
from tui.terminal_app import TerminalApp
from widgets.base.lines import Run, Tone

if TYPE_CHECKING:
    from probes.base.origin import Origin
    from probes.host.protocol import Host

INTERVAL_SECONDS = 60.0  # from the last answer of a reading to the next one
_TICK_SECONDS = 2.0


@dataclass
class OpenedNode:
    """A node whose dashboard is to be shown."""

    name: str
    host: Host


class FleetApp(TerminalApp[OpenedNode]):
    """The table of the nodes; it returns the node whose dashboard is to be shown.

    `state` and `reader` outlive the app: after the dashboard of a node, the next app shows them again.
    `interval` is in seconds; with None the nodes are read only on request.
    """

    # Textual does not read that of the first screen by itself.
    CSS_PATH = ["app.tcss", "screens/panes.tcss"]  # noqa: RUF012 - Textual's own type
    ENABLE_COMMAND_PALETTE = False

    class Reported(Message):
        """The reader has something new."""

    def __init__(
        self,
        state: FleetState,
        reader: FleetReader,
        open_node: Callable[[str], Host],
        origin: Origin,
        interval: float | None = INTERVAL_SECONDS,
        ascii_only: bool = False,
    ) -> None:
        super().__init__(origin, ascii_only)
        self._state, self._reader, self._open_node, self._origin = state, reader, open_node, origin
        self._interval = interval
        self._fleet = FleetScreen(state)
        self._is_notified = False
        self._notices = TerminalNotices(self, origin)

    def get_default_screen(self) -> FleetScreen:
        """Return the table."""
        return self._fleet

    def on_mount(self) -> None:
        """Show what the reader has found meanwhile, and read again if that is old."""
        change_head(self, sentence=(Run("Reading the nodes…", Tone.DIM),))
        self._state.opening = ""
        self._reader.attach(self._notify)
        self._show()
        self._read_if_due()
        self.set_interval(_TICK_SECONDS, self._read_if_due)

    def on_unmount(self) -> None:
        """Let the reader go on without a screen."""
        self._reader.detach()
        self.signals.note_left()
        self.signals.restore()

    # Reading

    def read(self) -> None:
        """Read all nodes now."""
        self._reader.start()
        self._show()

    def _read_if_due(self) -> None:
        age = self._reader.seconds_since
        if self._reader.is_reading:
            return
        if age is None or (self._interval is not None and age >= self._interval):
            self.read()

    def _notify(self) -> None:
        """Report once until the screen has taken it; called in the reader's thread."""
        if not self._is_notified:
            self._is_notified = True
            self.post_message(self.Reported())

    @on(Reported)
    def _take(self) -> None:
        self._is_notified = False
        self._show()

    def _show(self) -> None:
        self._state.is_reading, self._state.progress = self._reader.is_reading, self._reader.progress
        has_news = False
        while (reading := self._reader.take()) is not None:
            self._state.add(reading)
            self._notices.note_fleet(self._state.watch)
            has_news = True
        if found := self._reader.take_found():
            self._state.add_found(found)
            has_news = True
        if self._state.sentence:
            change_head(self, sentence=self._state.sentence, taken_at=self._state.watch.read_at)
        if has_news:
            self._fleet.draw()
        else:
            self._fleet.draw_summary()

    def on_request(self, request: Request) -> None:
        """Answer the screen."""
        REQUESTS[request.name](self, *request.values)

    # The dashboard of a node

    def open_node(self, name: str) -> None:
        """Connect to a node, and end with its dashboard."""
        self._state.opening = name
        self._fleet.draw()

        def fail(why: str) -> None:
            self._state.opening = ""
            self._fleet.draw()
            self.notify(why.partition(": ")[2] or why, severity="error", markup=False)

        call_in_thread(
            self.call_later,
            lambda: self._open_node(name),
            lambda host: self.exit(OpenedNode(name, host)),
            fail,
        )


REQUESTS: dict[str, Callable[..., object]] = {
    "open_node": lambda app, name: app.open_node(name),
    "read_nodes": lambda app: app.read(),
}


class NodeApp(GdrtopApp):
    """The dashboard of a node of a fleet: `q` and `F` go back to the table, Ctrl-C ends gdrtop."""

    BINDINGS = [bind("fleet", "leave_app")]  # noqa: RUF012 - Textual's own type
    _was_left = False

    @property
    def goes_back(self) -> bool:
        """Return whether the table is to be shown again."""
        return self._was_left and not self.quitting.has_hung_up and self.crash is None

    async def action_leave_app(self) -> None:
        """Go back to the table; ask first if something is running."""
        self._was_left = True
        await super().action_quit()

    async def action_quit(self) -> None:
        """End gdrtop; ask first if something is running."""
        self._was_left = False
        await super().action_quit()
