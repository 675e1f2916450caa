"""The application: holds the host and the sampler, and shows the overview."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.app import App
from textual.binding import Binding
from textual.message import Message
from textual.timer import Timer

from probes.origin import Origin
from tui.sampler import Report, Sampler
from tui.screens.overview import OverviewScreen

if TYPE_CHECKING:
    from probes.host import Host

LONGEST_INTERVAL_SECONDS = 60.0
SHORTEST_INTERVAL_SECONDS = 0.1
SILENCE_SECONDS = 3.0
# Loading the probes takes the interpreter for a while; the first screen goes to the terminal before.
FIRST_PAINT_SECONDS = 0.02


class GdrtopApp(App[None]):
    """htop for GPUDirect RDMA.

    The host is opened after the first paint. `interval` is in seconds; None takes readings only when asked,
    which the tests do.
    """

    CSS_PATH = "app.tcss"
    TITLE = "gdrtop"
    ENABLE_COMMAND_PALETTE = True
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-normal"), (160, "-wide")]  # noqa: RUF012 - Textual's own type
    VERTICAL_BREAKPOINTS = [(0, "-short"), (36, "-tall")]  # noqa: RUF012
    BINDINGS = [  # noqa: RUF012
        Binding("q", "quit", "Quit", tooltip="Leave gdrtop", id="quit"),
        Binding("space", "pause", "Pause", tooltip="Stop and resume the readings", id="pause"),
        Binding("r,f5", "probe", "Read again", tooltip="Probe the whole node anew", id="probe"),
        Binding("plus,equals_sign", "faster", "Faster", show=False, id="faster"),
        Binding("minus", "slower", "Slower", show=False, id="slower"),
        Binding("question_mark,f1,h", "help", "Help", tooltip="Keys and what the words mean", id="help"),
    ]

    @dataclass
    class NodeRead(Message):
        """The sampler has something to show."""

        report: Report

    def __init__(self, open_host: Callable[[], Host], origin: Origin, interval: float | None = 1.0) -> None:
        super().__init__()
        # The terminal's own sixteen colours: right on light and dark backgrounds, a third of the bytes.
        self.theme = "ansi-dark"
        self.animation_level = "none"
        self.interval = interval
        self.paused = False
        self._ticker: Timer | None = None
        self._sampler = Sampler(open_host, lambda report: self.post_message(self.NodeRead(report)))
        self._overview = OverviewScreen(origin)

    def get_default_screen(self) -> OverviewScreen:
        """The overview."""
        return self._overview

    def on_mount(self) -> None:
        """Paints first, then begins to read."""
        self._overview.tell_pace(self.interval, self.paused)
        self.set_timer(FIRST_PAINT_SECONDS, self._begin)

    def _begin(self) -> None:
        self._sampler.start()
        self._restart_timer()

    def _restart_timer(self) -> None:
        if self._ticker is not None:
            self._ticker.stop()
        if self.interval is not None:
            self._ticker = self.set_interval(self.interval, self._tick)

    def _tick(self) -> None:
        silence = self._sampler.silent_for()
        self._overview.tell_silence(silence if silence >= SILENCE_SECONDS else 0.0)
        if not self.paused:
            self._sampler.ask()

    def on_unmount(self) -> None:
        """Lets the thread end."""
        self._sampler.stop()

    def on_gdrtop_app_node_read(self, message: NodeRead) -> None:
        """Hands what was read to the screen."""
        with self.batch_update():
            self._overview.take(message.report)

    def take_reading(self) -> None:
        """Asks for one reading now."""
        self._sampler.ask()

    def action_pause(self) -> None:
        """Stops the readings, or resumes them."""
        self.paused = not self.paused
        self._overview.tell_pace(self.interval, self.paused)

    def action_probe(self) -> None:
        """Probes the whole node anew."""
        self._sampler.ask(probe=True)

    def action_faster(self) -> None:
        """Halves the interval."""
        self._set_interval(0.5)

    def action_slower(self) -> None:
        """Doubles the interval."""
        self._set_interval(2.0)

    def _set_interval(self, factor: float) -> None:
        if self.interval is None:
            return
        wanted = self.interval * factor
        self.interval = min(LONGEST_INTERVAL_SECONDS, max(SHORTEST_INTERVAL_SECONDS, wanted))
        self._restart_timer()
        self._overview.tell_pace(self.interval, self.paused)

    def action_help(self) -> None:
        """Shows the keys and what the words mean."""
        from tui.screens.help import HelpScreen

        self.push_screen(HelpScreen())
