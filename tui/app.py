"""The application: composes the screens and controllers, and passes keys and messages to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from textual import on
from textual.binding import Binding
from textual.message import Message

from tui.controllers.actions import ActionsController
from tui.controllers.bandwidth import BandwidthController
from tui.controllers.context import AppContext, QuitController
from tui.controllers.prove import RegistrationController
from tui.controllers.readings import ReadingsController, parts_of
from tui.controllers.terminal_notices import TerminalNotices
from tui.runtime.reading_thread import (
    Examined,
    Failed,
    Probed,
    ReadingSource,
    ReadingThread,
    RecordingEnded,
    RecordingState,
    Report,
    Sampled,
)
from tui.screens.head import change_head
from tui.screens.keys import bind
from tui.screens.overview.screen import OverviewScreen
from tui.screens.request import Request
from tui.terminal_app import TerminalApp

if TYPE_CHECKING:
    from probes.base.origin import Origin
    from probes.host.protocol import Host
    from tui.controllers.nccl import NcclController
    from tui.controllers.ras import RasController
    from tui.controllers.setup import SetupController
    from tui.runtime.replay_source import ReplaySource

LATEST_START_SECONDS = 0.3
_NO_FLEET = "No fleet is open. Start gdrtop fleet watch -w NODES to see many nodes."


class GdrtopApp(TerminalApp[None]):
    """htop for GPUDirect RDMA.

    The host is opened after the first paint; with `replay`, a recording is shown instead. `interval` is in
    seconds; with None the node is read only on request, which the tests use. With `read_only` nothing runs.
    """

    ENABLE_COMMAND_PALETTE = True
    BINDINGS = [  # noqa: RUF012 - Textual's own type
        bind("actions", "actions"),
        bind("history", "history", show=False),
        bind("overview", "overview", show=False),
        bind("doctor", "doctor"),
        bind("live", "live"),
        bind("nccl", "nccl", show=False),
        bind("setup", "setup"),
        bind("bandwidth", "bandwidth", show=False),
        bind("prove", "prove", show=False),
        bind("ras", "ras", show=False),
        bind("ras_events", "ras_events", show=False),
        bind("fleet", "fleet", show=False),
        bind("quit", "leave_app", label="Quit"),
        bind("palette", "command_palette", show=False),
        bind("pause", "pause", show=False),
        bind("refresh", "probe", show=False),
        bind("record", "record", show=False),
        bind("pace", "faster", "plus,equals_sign", show=False),
        bind("pace", "slower", "minus", show=False),
    ]

    @dataclass
    class NodeRead(Message):
        """The reading thread has something to show."""

        report: Report

    def __init__(
        self,
        open_host: Callable[[], Host],
        origin: Origin,
        interval: float | None = 1.0,
        replay: ReplaySource | None = None,
        read_only: bool = False,
        ascii_only: bool = False,
    ) -> None:
        super().__init__(origin, ascii_only)
        self._origin, self._open_host, self._replay = origin, open_host, replay
        self._overview = OverviewScreen()
        if replay is not None:
            from tui.screens.overview.screen import ReplayScreen

            self._overview = ReplayScreen()
        self._reading_thread = ReadingThread(
            self._open_source, lambda report: self.post_message(self.NodeRead(report)), read_only
        )
        self._shared = AppContext(self, origin, self._reading_thread, self._overview)
        self.readings = ReadingsController(self._shared, interval, replay)
        self.actions = ActionsController(self._shared, read_only)
        self.bandwidth = BandwidthController(self._shared, self.readings, read_only)
        self.registration = RegistrationController(self._shared, read_only)
        self.quitting = QuitController(self._shared, self.signals)
        self._notices = TerminalNotices(self, origin)
        self._shared.activities = (self.bandwidth, self.registration, self.actions.run)

    def _open_source(self) -> ReadingSource:
        self._shared.host = self._open_host()
        return self.readings.source(self._shared.host)

    def get_default_screen(self) -> OverviewScreen:
        """Return the overview."""
        return self._overview

    def on_mount(self) -> None:
        """Start the readings after the first paint."""
        self.readings.show_state()
        if self._replay is not None and self._replay.damage:
            self._shared.notify(f"This recording is {self._replay.damage}.", "warning", timeout=15)
        # Importing the probes blocks the interpreter for a while; the first screen is painted before.
        self.call_after_refresh(self.readings.start)
        # A key that opens another screen at once keeps the first one from being painted.
        self.set_timer(LATEST_START_SECONDS, self.readings.start)

    def on_unmount(self) -> None:
        """Close the controllers and end the reading thread."""
        self.quitting.close()
        self.readings.end_ras_events()
        self._reading_thread.stop()

    # What was read

    @on(NodeRead)
    def _show_report(self, message: NodeRead) -> None:
        report = message.report
        if isinstance(report, Examined):
            self._show_examination(report)
        elif isinstance(report, RecordingState | RecordingEnded):
            self.readings.show_recording(report)
        else:
            parts = parts_of(report)
            for part in parts:
                if isinstance(part, Sampled) and part.live is not None:
                    self._shared.live.add(part.live)
            self.readings.show(report)
            self._show_head(report)
            self._shared.draw_live()
            newest = parts[-1]
            if isinstance(newest, Sampled):
                self._notices.note(self._overview.hostname, newest.judgment)
            if isinstance(newest, Sampled) and self._shared.doctor.follow(newest.judgment, newest.taken_at):
                self._draw_doctor()
            if any(isinstance(part, Probed) for part in parts):
                self.bandwidth.setup.load_results_once()
            if any(isinstance(part, Sampled) for part in parts):
                self.bandwidth.setup.note_reading()
            if not isinstance(report, Probed):  # a check of a big node would delay its first figures
                self.readings.ask_examination_if_due()

    def _show_examination(self, report: Examined) -> None:
        doctor = self._shared.doctor
        if report.examination is None or report.judgment is None:
            doctor.fail(report.failure)
            self._overview.fail_check(report.failure)
        else:
            self._notices.note(self._overview.hostname, report.judgment)
            doctor.set_examination(report.examination, report.judgment, report.since_ok)
            self._overview.apply_check(report.examination, report.judgment, report.detours, report.since_ok)
            self._show_head(report)
            self._shared.live.judge(report.judgment)
            self._shared.draw_live()
        self._draw_doctor()
        self.actions.note_examination(report)
        self.bandwidth.setup.note_examination(report)
        if "setup" in vars(self):  # it was opened
            self.setup.note_examination(report)

    def _show_head(self, report: Report) -> None:
        """Show what is true of the node now in the head of all screens."""
        if isinstance(report, Failed):
            change_head(self, failure=report.what)
        elif (state := self._overview.state) is not None:
            change_head(self, **state.head_fields())

    def _draw_doctor(self) -> None:
        if len(self.screen_stack) > 1:
            from tui.screens.doctor.screen import DoctorScreen

            self._shared.draw(DoctorScreen)

    # Keys

    @property
    def _asks(self) -> bool:
        """Whether a question is open; there is no screen before the app runs."""
        return any(getattr(screen, "is_question", False) for screen in self.screen_stack[-1:])

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the keys that do nothing in a recording, and all commands until a question is answered."""
        if self._asks:
            return action not in _DEAD_IN_QUESTIONS
        return not (self._replay is not None and action in ("probe", "record"))

    def why_not(self, action: str) -> str:
        """Return why a command of the app cannot be done now."""
        if self._asks:
            return "first answer the question on this screen. Esc cancels it."
        return "this is a recording." if action in ("probe", "record") else ""

    def action_overview(self) -> None:
        self.bandwidth.setup.cancel()
        while len(self.screen_stack) > 1:
            self.pop_screen()

    def action_doctor(self) -> None:
        from tui.screens.doctor.screen import DoctorScreen

        self._shared.show(DoctorScreen, lambda: DoctorScreen(self._shared.doctor))

    def action_live(self) -> None:
        from tui.screens.live.screen import LiveScreen

        is_replay = self._replay is not None
        self._shared.show(LiveScreen, lambda: LiveScreen(self._shared.live, is_replay))
        self._shared.draw_live()

    @cached_property
    def nccl(self) -> NcclController:
        """The logs of the jobs."""
        from tui.controllers.nccl import NcclController

        return NcclController(self._shared)

    @cached_property
    def ras(self) -> RasController:
        """The questions to NCCL's RAS service."""
        from tui.controllers.ras import RasController

        return RasController(self._shared, self.readings)

    @cached_property
    def setup(self) -> SetupController:
        """The steps of setting up the node."""
        from tui.controllers.setup import SetupController

        return SetupController(self._shared, self.actions, self.bandwidth)

    def action_command_palette(self) -> None:
        from tui.controllers.palette import Palette

        if not isinstance(self.screen, Palette):
            self.push_screen(Palette())

    def action_themes(self) -> None:
        from tui.controllers.palette import Palette, ThemesProvider

        self.push_screen(Palette(ThemesProvider, "theme"))

    def action_theme(self, name: str) -> None:
        """Use a theme, and save it."""
        from tui.screens.own_settings import save_setting

        self.theme = name
        hint = ". NO_COLOR is set, so no colors are shown" if self.no_color else ""
        save_setting(self, "theme", name, f"Theme {name}{hint}")

    async def action_quit(self) -> None:
        """Quit; ask first if something is running. While gdrtop waits for a step: ask to stop waiting."""
        if self._shared.is_leaving:
            self.actions.run.ask_to_stop()
        else:
            self.quitting.quit()

    def action_probe(self) -> None:
        self._reading_thread.ask_examination(probe=True)
        self._reading_thread.ask()

    # Signals, and requests of the screens

    def hang_up(self, why: str) -> None:
        """Stop everything at once, and quit."""
        self.quitting.stop(why)
        self.exit()

    def show_finding(self, finding: str, in_plain_words: bool) -> None:
        """Show a finding in the doctor, or what it means."""
        self._shared.doctor.filter("")
        self._shared.doctor.choose(finding)
        if in_plain_words:
            self._shared.doctor.show("explanation")
        self.action_doctor()

    def on_request(self, request: Request) -> None:
        """Answer a screen."""
        REQUESTS[request.name](self, *request.values)


_DEAD_IN_QUESTIONS = {binding.action for binding in Binding.make_bindings(GdrtopApp.BINDINGS)}

ACTIONS: dict[str, Callable[..., object]] = {
    "actions": lambda app: app.actions.show(),
    "act": lambda app, name: app.actions.show_plan(name),
    "history": lambda app: app.actions.show_history(),
    "bandwidth": lambda app: app.bandwidth.show(),
    "prove": lambda app: app.registration.show(),
    "setup": lambda app: app.setup.show(),
    "nccl": lambda app: app.nccl.show(),
    "ras": lambda app: app.ras.show(),
    "ras_events": lambda app: app.ras.toggle_events(),
    "fleet": lambda app: app.notify(_NO_FLEET),  # the dashboard of a node of one goes back to it
    "start_view": lambda app: app.get_default_screen().save_start(),
    "pause": lambda app: app.readings.toggle_pause(),
    "record": lambda app: app.readings.toggle_recording(),
    "faster": lambda app: app.readings.scale_interval(0.5),
    "slower": lambda app: app.readings.scale_interval(2.0),
    "move": lambda app, step: app.readings.move(step),
    "move_to_end": lambda app, side: app.readings.move_to_end(side),
}
"""What a controller does for the action of a key; actions that are more than that are methods."""

# What screens ask for, and what answers. By name, because most screens are imported on first use.
REQUESTS: dict[str, Callable[..., object]] = {
    "check": lambda app: app.action_probe(),
    "finding": lambda app, finding, in_plain_words=False: app.show_finding(finding, in_plain_words),
    "fix": lambda app, finding: app.actions.show_plan(f"fix:{finding}"),
    "move": lambda app, step: app.readings.move(step),
    "move_to_end": lambda app, side: app.readings.move_to_end(side),
    "move_to_time": lambda app, at: app.readings.move_to_time(at),
    "read_ahead": lambda app: app.readings.read_ahead(),
    "log": lambda app, job: app.nccl.show(job),
    "follow_log": lambda app, key: app.nccl.open(key),
    "open_log": lambda app, path: app.nccl.open_path(path),
    "find_logs": lambda app: app.nccl.search(),
    "read_log": lambda app: app.nccl.read(),
    "ask_ras": lambda app, port, command: app.ras.ask(port, command),
    "find_ras": lambda app: app.ras.search(),
    "begin_step": lambda app, step: app.setup.begin_step(step),
    "skip_step": lambda app, step: app.setup.skip(step),
    "change_path": lambda app: app.setup.change_path(),
    "read_setup": lambda app: app.setup.refresh(),
    "plan": lambda app, offer: app.actions.show_plan(offer),
    "undo": lambda app, run: app.actions.show_undo(run),
    "run": lambda app, prepared, typed: app.actions.run.start(prepared, typed),
    "rehearse": lambda app, prepared, screen: app.actions.rehearse(prepared, screen),
    "stop_run": lambda app: app.actions.run.ask_to_stop(),
    "run_seen": lambda app: app.actions.run.note_end_seen(),
    "register": lambda app: app.registration.ask(),
    "plan_registration": lambda app: app.registration.plan(),
    "cancel_registration": lambda app: app.registration.ask_to_cancel(),
    "plan_tests": lambda app: app.bandwidth.setup.plan(),
    "run_tests": lambda app: app.bandwidth.setup.run_planned(),
    "tests_seen": lambda app: app.bandwidth.note_end_seen(),
    "cancel_tests": lambda app: app.bandwidth.ask_to_cancel(),
    "skip_test": lambda app: app.bandwidth.worker.skip(),
    "repeat_tests": lambda app, series: app.bandwidth.setup.run_again(series),
    "save_baseline": lambda app, state: app.bandwidth.save_baseline(state),
}
for name, act in ACTIONS.items():
    setattr(GdrtopApp, f"action_{name}", act)
