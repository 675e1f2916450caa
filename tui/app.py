"""The application: holds the host and the sampler, and shows the overview."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.filter import LineFilter
from textual.message import Message
from textual.timer import Timer

from probes.base.origin import Origin
from probes.host.progress import quiet_seconds
from tui.controllers.bandwidth import MeasuringApp
from tui.runtime.examination_schedule import ExaminationPace, ReadingPace
from tui.runtime.sampler import (
    Examined,
    Probed,
    RecordingEnded,
    RecordingState,
    Replayed,
    Report,
    Sampled,
    Sampler,
    Source,
)
from tui.screens.doctor.state import DoctorState
from tui.screens.keys import bind
from tui.screens.overview.screen import OverviewScreen

if TYPE_CHECKING:
    from probes.host.protocol import Host
    from tui.runtime.live_source import Live
    from tui.runtime.recorder import Recorded
    from tui.runtime.replay_source import Replay

LONGEST_INTERVAL_SECONDS = 60.0
SHORTEST_INTERVAL_SECONDS = 0.1
SILENCE_SECONDS = 3.0
# Loading the probes takes the interpreter for a while; the first screen goes to the terminal before.
FIRST_PAINT_SECONDS = 0.02


class GdrtopApp(MeasuringApp):
    """htop for GPUDirect RDMA.

    The host is opened after the first paint; with `replay` a recording is shown in its place. `interval` is
    in seconds; None takes readings only when asked, which the tests do. With `read_only` nothing is run.
    """

    CSS_PATH = "app.tcss"
    TITLE = "gdrtop"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-normal"), (160, "-wide")]  # noqa: RUF012 - Textual's own type
    VERTICAL_BREAKPOINTS = [(0, "-short"), (36, "-tall")]  # noqa: RUF012
    BINDINGS = [  # noqa: RUF012
        bind("doctor", "doctor"),
        bind("bandwidth", "bandwidth"),
        bind("quit", "quit", label="Quit"),
        bind("exit", "quit", show=False, priority=True),
        bind("palette", "command_palette", show=False),
        bind("pause", "pause"),
        bind("refresh", "probe"),
        bind("record", "record"),
        bind("pace", "faster", "plus,equals_sign", show=False),
        bind("pace", "slower", "minus", show=False),
    ]

    @dataclass
    class NodeRead(Message):
        """The sampler has something to show."""

        report: Report

    def __init__(
        self,
        open_host: Callable[[], Host],
        origin: Origin,
        interval: float | None = 1.0,
        replay: Replay | None = None,
        read_only: bool = False,
        ascii_only: bool = False,
    ) -> None:
        super().__init__(origin, read_only)
        self._ascii_filters: tuple[LineFilter, ...] = ()
        if ascii_only:
            from tui.runtime.ascii_filter import AsciiFilter

            self._ascii_filters = (AsciiFilter(),)
        # The terminal's own sixteen colors: right on light and dark backgrounds, a third of the bytes.
        self.theme = "ansi-dark"
        self.animation_level = "none"
        self.interval = interval
        self.paused = False
        self._ticker: Timer | None = None
        self._open_host = open_host
        self._replay = replay
        self._live: Live | None = None
        self._shown_moment = 0
        self._sampler = Sampler(self._open_source, lambda report: self.post_message(self.NodeRead(report)))
        self._doctor = DoctorState()
        self._examination_pace = ExaminationPace()
        self._reading_pace = ReadingPace()
        self._asked_at = -LONGEST_INTERVAL_SECONDS
        self._overview = OverviewScreen(origin)
        if replay is not None:
            from tui.screens.overview.replay import ReplayScreen

            self._overview = ReplayScreen(origin)

    def _open_source(self) -> Source:
        self._host = self._open_host()
        if self._replay is not None:
            return self._replay
        from tui.runtime.live_source import Live

        self._live = Live(self._host)
        return self._live

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual's filters, and that of `--ascii`."""
        return [*super().get_line_filters(), *self._ascii_filters]

    def get_default_screen(self) -> OverviewScreen:
        """The overview."""
        return self._overview

    def on_mount(self) -> None:
        """Paint first, then begin to read."""
        self.begin_acting()
        self._tell_pace()
        if self._replay is not None and self._replay.damage:
            self.notify(
                f"This recording is {self._replay.damage}.", severity="warning", timeout=15, markup=False
            )
        self.set_timer(FIRST_PAINT_SECONDS, self._begin)

    def _begin(self) -> None:
        self._sampler.start()
        self._restart_timer()

    def _restart_timer(self) -> None:
        if self._ticker is not None:
            self._ticker.stop()
        if self.interval is not None:
            self._ticker = self.set_interval(self.interval, self.tick)

    def tick(self) -> None:
        """One interval has passed."""
        silence = self._sampler.silent_for()
        self._overview.tell_silence(
            silence if silence >= SILENCE_SECONDS else 0.0, is_slow=quiet_seconds() < SILENCE_SECONDS
        )
        if self.paused:
            return
        if self._replay is None:
            self._ask_reading()
        elif self._replay.position < self._replay.last:
            self._replay.move(self._replay.position + 1)
            self._sampler.ask()

    def _ask_reading(self) -> None:
        now = time.monotonic()
        if self.interval is None or now - self._asked_at >= self._reading_pace.interval(self.interval) - 0.05:
            self._asked_at = now
            self._sampler.ask()

    def on_unmount(self) -> None:
        """Let the thread end."""
        self.end_acting()
        self._sampler.stop()

    def end_recording(self) -> Recorded | None:
        """End a recording under way when the program is left; RecordingError where it cannot be written."""
        return self._live.close() if self._live is not None else None

    def on_gdrtop_app_node_read(self, message: NodeRead) -> None:
        """Hand what was read to the screen."""
        report = message.report
        if isinstance(report, Examined):
            self._take_examination(report)
            return
        if isinstance(report, RecordingState):
            self._overview.tell_recording(f"REC {report.moments} · {report.size_bytes / 1000:.0f} kB")
            return
        if isinstance(report, RecordingEnded):
            self._overview.tell_recording("")
            self.notify(
                report.what,
                title="Recording",
                severity="error" if report.failed else "information",
                timeout=20,
                markup=False,
            )
            return
        if isinstance(report, Replayed):
            self._shown_moment = report.moment
            if self._replay is not None and self._replay.position != report.moment:
                self._sampler.ask()  # it was moved on meanwhile
            self._tell_pace()
        with self.batch_update():
            self._overview.take(report)
        probed = report.reports if isinstance(report, Replayed) else (report,)
        for one in probed:
            if isinstance(one, Probed):
                self._probed_at = one.node.taken_at
        if isinstance(report, Probed):
            self._asked_at = time.monotonic()  # the probe's time is not the reading's
        elif isinstance(report, Sampled) and self._replay is None:
            self._reading_pace.note_reading(time.monotonic() - self._asked_at)
            self._tell_pace()
        if any(isinstance(one, Probed) for one in probed):
            self._examination_pace.note_change()
            self.begin_measuring()
        if any(isinstance(one, Sampled) for one in probed):
            self.note_reading()
        if self.interval is not None and self._examination_pace.is_due(time.monotonic()):
            self._sampler.ask_examination()

    def _take_examination(self, report: Examined) -> None:
        if report.examination is None:
            self._doctor.fail(report.failure)
            self._overview.fail_check(report.failure)
        else:
            self._doctor.take(report.examination)
            self._overview.take_findings(self._doctor.findings, report.examination, report.detours)
        from tui.screens.doctor.screen import DoctorScreen

        for screen in self.screen_stack:
            if isinstance(screen, DoctorScreen):
                screen.draw()
        self.note_examination(report)

    def on_overview_screen_finding_wanted(self, message: OverviewScreen.FindingWanted) -> None:
        """A finding of the overview is to be shown in the doctor."""
        self._doctor.filter("")
        self._doctor.selected = message.finding
        self.action_doctor()

    def on_examined_list_screen_wanted(self) -> None:
        """The doctor's or the actions' screen asks for an examination."""
        self._sampler.ask_examination()

    def take_reading(self) -> None:
        """Ask for one reading now."""
        self._sampler.ask()

    def _tell_pace(self) -> None:
        pace = (
            "PAUSED"
            if self.paused
            else ""
            if self.interval is None
            else self._reading_pace.word(self.interval)
        )
        if self._replay is not None:
            at_end = self._shown_moment == self._replay.last
            # As it was recorded is a moment a second.
            pace = "END" if at_end else "" if pace == "every 1 s" else pace
            pace = f"{self._shown_moment + 1}/{self._replay.last + 1} {pace}".rstrip()
        self._overview.tell_pace(pace)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A recording is neither probed again nor recorded."""
        return not (self._replay is not None and action in ("probe", "record"))

    def action_pause(self) -> None:
        """Stop or resume the readings; at the end of a recording begin it again."""
        self.paused = not self.paused
        if self._replay is not None and self._replay.position == self._replay.last:
            self.paused = False
            self._replay.move(0)
            self._sampler.ask()
        self._tell_pace()

    def action_move(self, step: int) -> None:
        """Move in a recording, by so many moments."""
        if self._replay is not None:
            self._move_to(self._replay.position + step)

    def action_move_to_end(self, side: int) -> None:
        """Move to a recording's first moment (-1) or last (1)."""
        if self._replay is not None:
            self._move_to(self._replay.last if side > 0 else 0)

    def _move_to(self, moment: int) -> None:
        if self._replay is None:
            return
        self._replay.move(moment)
        # Who looks for a moment wants it to stay.
        self.paused = True
        self._tell_pace()
        self._sampler.ask()

    def action_record(self) -> None:
        """Begin a recording of this node, or end it."""
        if self._live is not None:
            self._live.toggle_recording()
            self._sampler.ask()

    def action_probe(self) -> None:
        """Probe the whole node again."""
        self._sampler.ask(probe=True)

    def action_faster(self) -> None:
        """Halve the interval."""
        self._set_interval(0.5)

    def action_slower(self) -> None:
        """Double the interval."""
        self._set_interval(2.0)

    def _set_interval(self, factor: float) -> None:
        if self.interval is None:
            return
        wanted = self.interval * factor
        self.interval = min(LONGEST_INTERVAL_SECONDS, max(SHORTEST_INTERVAL_SECONDS, wanted))
        self._restart_timer()
        self._tell_pace()

    def action_help(self) -> None:
        """Show the help, at what concerns the screen that is shown."""
        from tui.screens.help import HelpScreen

        self.push_screen(HelpScreen(self._origin, type(self.screen).__name__))
