"""Decide when the node is read and checked: the interval, a pause, a recording and the position in it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from probes.host.probe_thread import quiet_seconds
from tui.runtime.background_task import BackgroundTask
from tui.runtime.reading_thread import (
    Failed,
    Probed,
    ReadingSource,
    RecordingEnded,
    RecordingState,
    Replayed,
    Sampled,
)
from tui.runtime.schedules import USUAL_PACE, ReadingSchedule
from tui.screens.keys import KEYS

if TYPE_CHECKING:
    from textual.timer import Timer

    from probes.host.protocol import Host
    from probes.live.model.sample import LiveEvent
    from tui.controllers.context import AppContext
    from tui.runtime.live_source import LiveSource
    from tui.runtime.recorder import Recorded
    from tui.runtime.replay_source import ReplaySource

LONGEST_INTERVAL_SECONDS = 60.0
SHORTEST_INTERVAL_SECONDS = 0.1
SILENCE_SECONDS = 3.0
_MOST_EVENTS = 20_000  # of a recording, read ahead


class ReadingsController:
    """The reading thread's timer and source.

    `interval` is in seconds; with None the node is read only on request.
    """

    def __init__(self, context: AppContext, interval: float | None, replay: ReplaySource | None) -> None:
        self._context = context
        self.interval = interval
        self.paused = False
        self._is_started = False
        self._replay = replay
        self.live: LiveSource | None = None  # once it is open; None for a recording
        self._timer: Timer | None = None
        self._shown_moment = 0
        self._state: str | None = None
        self._needs_check = False
        self._reading_schedule = ReadingSchedule()
        self._asked_at = -LONGEST_INTERVAL_SECONDS
        self._ahead: BackgroundTask[tuple[Sequence[LiveEvent], float]] | None = None  # reads ahead

    def source(self, host: Host) -> ReadingSource:
        """Return what the reading thread reads: the recording, or the node; called in the reading thread."""
        if self._replay is not None:
            return self._replay
        from tui.runtime.live_source import LiveSource

        self.live = LiveSource(host)
        return self.live

    def end_ras_events(self) -> None:
        """End the connection on which a job sends RAS events, if there is one."""
        if self.live is not None:
            self.live.monitor.ras.stop(self.live.monitor.host)

    def start(self) -> None:
        """Open the node and read it from now on; a second call does nothing."""
        if self._is_started:
            return
        self._is_started = True
        self._context.reading_thread.start()
        self._restart_timer()

    def _restart_timer(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        if self.interval is not None:
            self._timer = self._context.app.set_interval(self.interval, self.tick)

    def tick(self) -> None:
        """Ask for the next reading; called once per interval."""
        silence = self._context.reading_thread.silent_for()
        self._context.change_head(
            silence=float(int(silence)) if silence >= SILENCE_SECONDS else 0.0,
            is_slow=quiet_seconds() < SILENCE_SECONDS,
        )
        if self.paused:
            return
        if self._replay is None:
            self._ask_if_due()
        elif self._replay.position < self._replay.last:
            self._replay.move(self._replay.position + 1)
            self._context.reading_thread.ask()

    def _ask_if_due(self) -> None:
        now = time.monotonic()
        if (
            self.interval is None
            or now - self._asked_at >= self._reading_schedule.interval(self.interval) - 0.05
        ):
            self._asked_at = now
            self._context.reading_thread.ask()

    # What was read

    def show(self, report: Probed | Sampled | Replayed | Failed) -> None:
        """Show a report on the overview, and adapt the interval to the time that it took."""
        if isinstance(report, Replayed):
            self._shown_moment = report.moment
            if self._replay is not None and self._replay.position != report.moment:
                self._context.reading_thread.ask()  # the position has changed meanwhile
            self.show_state()
        self._context.overview.apply(report)
        if isinstance(report, Probed):
            self._asked_at = time.monotonic()  # a probe's time does not count as a reading's
        elif isinstance(report, Sampled) and self._replay is None:
            self._reading_schedule.note_reading(time.monotonic() - self._asked_at)
            self.show_state()
        for part in parts_of(report):
            if isinstance(part, Probed):
                self._context.probed_at = part.node.taken_at
            elif isinstance(part, Sampled):
                self._needs_check = part.needs_check

    def ask_examination_if_due(self) -> None:
        """Ask for a check if the newest reading needs one, once that is drawn."""
        if self.interval is not None and self._needs_check:
            self._needs_check = False
            self._context.app.call_after_refresh(self._context.reading_thread.ask_examination)

    def show_state(self) -> None:
        """Show the interval, the pause, or the position in a recording."""
        if self.paused:
            state = "PAUSED"
        else:
            state = "" if self.interval is None else self._reading_schedule.word(self.interval)
        if self._replay is not None:
            if self._shown_moment == self._replay.last:
                state = "END"
            elif state == USUAL_PACE:  # the speed at which it was recorded
                state = ""
            state = f"{self._shown_moment + 1}/{self._replay.last + 1} {state}".rstrip()
        if state != self._state:
            self._state = state
            self._context.change_head(pace=state)

    # Recording

    def toggle_recording(self) -> None:
        """Start recording this node, or stop."""
        if self.live is not None:
            if self.live.toggle_recording():
                text = f"Recording this node. {KEYS['record'].display} stops it."
                self._context.notify(text, title="Recording", timeout=5)
            self._context.reading_thread.ask()

    def show_recording(self, report: RecordingState | RecordingEnded) -> None:
        """Show how long the recording is, or how it ended."""
        if isinstance(report, RecordingState):
            state = f"REC {report.moments} · {report.size_bytes / 1000:.0f} kB"
            self._context.change_head(recording=state)
            return
        self._context.change_head(recording="")
        self._context.notify(
            report.what, "error" if report.failed else "information", title="Recording", timeout=20
        )

    def end_recording(self) -> Recorded | None:
        """End a running recording after the app; RecordingError if it cannot be written."""
        return self.live.close() if self.live is not None else None

    # Keys

    def toggle_pause(self) -> None:
        """Pause or resume; at the end of a recording, start it again."""
        self.paused = not self.paused
        if self._replay is not None and self._replay.position == self._replay.last:
            self.paused = False
            self._replay.move(0)
            self._context.reading_thread.ask()
        self.show_state()

    def move(self, step: int) -> None:
        """Move in a recording by a number of moments, and pause there."""
        if self._replay is not None:
            self._move_to(self._replay, self._replay.position + step)

    def move_to_end(self, side: int) -> None:
        """Move to the first moment of a recording (-1) or the last (1), and pause there."""
        if self._replay is not None:
            self._move_to(self._replay, self._replay.last if side > 0 else 0)

    def move_to_time(self, taken_at: float) -> None:
        """Move in a recording to the moment at this time, in seconds since 1970, and pause there."""
        if self._replay is not None:
            self._move_to(self._replay, self._replay.moment_at(taken_at))

    def read_ahead(self) -> None:
        """Read the events of the whole recording in a thread, once."""
        replay, app = self._replay, self._context.app
        if replay is None or self._ahead is not None:
            return
        ahead = self._ahead = BackgroundTask(app.call_later, "reading ahead")

        def warn(message: str) -> None:
            app.call_later(self._context.notify, f"The recording could not be read to its end: {message}")

        def work() -> None:
            count = 0
            try:
                for events, at in replay.events():
                    ahead.put((events, at))
                    count += len(events)
                    if count > _MOST_EVENTS:
                        warn(f"more than {_MOST_EVENTS} events")
                        break
                    if not app.is_running:
                        break
            finally:
                ahead.put(((), math.inf))

        ahead.run_in_background(self._take_events, work, warn)

    def _take_events(self) -> None:
        from tui.screens.live.screen import LiveScreen

        for events, read_to in [] if self._ahead is None else self._ahead.drain():
            self._context.live.add_recorded(events, read_to)
        for screen in self._context.shown(LiveScreen):
            screen.events_read()

    def _move_to(self, replay: ReplaySource, moment: int) -> None:
        replay.move(moment)
        self.paused = True
        self.show_state()
        self._context.reading_thread.ask()

    def scale_interval(self, factor: float) -> None:
        """Multiply the interval, within its limits."""
        if self.interval is not None:
            wanted = self.interval * factor
            self.interval = min(LONGEST_INTERVAL_SECONDS, max(SHORTEST_INTERVAL_SECONDS, wanted))
            self._restart_timer()
            self.show_state()
            # The first line may have no room for it, and other screens do not show it.
            self._context.notify(self._reading_schedule.word(self.interval).capitalize(), timeout=2)


def parts_of(report: Probed | Sampled | Replayed | Failed) -> tuple[Probed | Sampled | Failed, ...]:
    """Return the parts of a report, in the order of time."""
    return report.reports if isinstance(report, Replayed) else (report,)
