"""Guided setup: read the guide, run what completes a step, save the admin's choices."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from probes.base.origin import Source
from probes.facts.gpudirect import GdrPath
from probes.plans.catalogue import Offer
from probes.setup.steps.guide import Guide, read_guide
from tui.actions.local_commands import why_no_root
from tui.actions.manual_steps import as_simulated
from tui.files import NotWritten
from tui.files.new_file import file_word
from tui.files.setup_log import PATH, REPORTED, SKIP, UNSKIP, open_setup_log, remember_boot
from tui.runtime.lock import user_and_day
from tui.screens.setup import GuideState, SetupScreen

if TYPE_CHECKING:
    from probes.snapshot.examination import Examination
    from tui.controllers.actions import ActionsController
    from tui.controllers.bandwidth import BandwidthController
    from tui.controllers.context import AppContext
    from tui.runtime.reading_thread import Examined


class SetupController:
    """The setup screen's state, and the thread that reads the guide."""

    def __init__(
        self, context: AppContext, actions: ActionsController, bandwidth: BandwidthController
    ) -> None:
        self._context, self._actions, self._bandwidth = context, actions, bandwidth
        self.state = GuideState()
        self._log = open_setup_log(context.origin.source is Source.LIVE)
        bandwidth.setup.on_results = self.refresh
        self._is_reading = self._is_writing = False
        self._wanted: Examination | None = None  # a newer one, to be read when the running reading ends

    def show(self) -> None:
        """Show the screen, and check the node if it was not checked since the last change."""
        self._context.show(SetupScreen, lambda: SetupScreen(self.state))
        examination = self._context.doctor.examination
        if examination is None or examination.node.taken_at < self._context.probed_at:
            self.state.begin()
            self._context.reading_thread.ask_examination()
        else:
            self._read(examination)
        self._context.draw(SetupScreen)

    def refresh(self) -> None:
        """Read the guide again if it is shown: a test or an action may have ended."""
        examination = self._context.doctor.examination
        if examination is not None and self._context.shown(SetupScreen):
            self._read(examination)
            self._context.draw(SetupScreen)

    def note_examination(self, report: Examined) -> None:
        """Read the guide again if it is shown."""
        if not self._context.shown(SetupScreen):
            return
        if report.examination is None:
            self._fail(report.failure)
        else:
            self._read(report.examination)

    def _read(self, examination: Examination) -> None:
        host = self._context.host
        if host is None:
            return
        if self._is_reading:
            self._wanted = examination
            return
        self._is_reading = True
        self.state.begin()
        findings, results, log = self._context.doctor.findings, self._bandwidth.worker.kept, self._log

        is_live = self._context.origin.source is Source.LIVE

        def read() -> tuple[Guide, str]:
            guide = read_guide(host, examination, findings, results, log.record())
            return guide, why_no_root() if is_live else ""

        self._context.run_in_thread(read, self._take, self._fail)

    def _take(self, answer: tuple[Guide, str]) -> None:
        guide, no_root = answer
        self.state.set_guide(guide, self._bandwidth.worker.refusal or no_root)
        self._end_reading()
        self._context.draw(SetupScreen)

    def _remember_boot(self, guide: Guide) -> None:
        """Save that setup was used in this boot; only showing the steps writes nothing."""
        failure = "" if self._actions.run.dispatcher.refusal else remember_boot(self._log, guide)
        if failure:
            self._context.notify(f"The reboot cannot be checked later: {failure}.", "warning")

    def _end_reading(self) -> None:
        self._is_reading = False
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            self._read(wanted)

    def _fail(self, message: str) -> None:
        self.state.fail(message)
        self._end_reading()
        self._context.draw(SetupScreen)

    # Steps

    def begin_step(self, name: str) -> None:
        """Show the plan, the bandwidth test or the command that completes a step."""
        guide = self.state.guide
        step = None if guide is None else guide.step(name)
        if guide is None or step is None:
            return
        self._remember_boot(guide)
        if step.test is not None:
            self._bandwidth.show_request(step.test)
        elif step.plan is not None:
            is_simulated = self._context.origin.source is Source.SIMULATED
            plan = as_simulated(step.plan) if is_simulated else step.plan
            offer = Offer(f"setup:{step.id}", step.title, plan)
            self._actions.confirm(offer, guide.situation.examination)
        elif step.id == "report":
            self._write_report()
        elif step.command:
            self._context.notify(f"Run in a shell: {step.command}", title=step.title)

    def _write_report(self) -> None:
        """Write the report to a new file in the current directory, and complete its step."""
        from tui.controllers.report_reader import read_report
        from tui.files.new_file import write_new
        from tui.files.version import version
        from widgets.report.html import html_of

        host, store = self._context.host, self._bandwidth.worker.store
        dispatcher = self._actions.run.dispatcher
        if host is None or self._is_writing:
            return
        self._is_writing = True
        node, log = file_word(self._context.overview.hostname), self._log
        name = f"gdrtop-report-{node}-{time.strftime('%Y%m%d-%H%M%S', time.localtime())}.html"
        self._context.notify("Writing the report. This takes a few seconds.")

        def write() -> str:
            path = write_new(name, html_of(read_report(host, store=store, dispatcher=dispatcher), version()))
            log.add(REPORTED, path)
            return path

        def apply(path: str) -> None:
            self._is_writing = False
            self._context.notify(f"Written to {path}")
            self.refresh()

        def fail(message: str) -> None:
            self._is_writing = False
            self._context.report_error(message)

        self._context.run_in_thread(write, apply, fail)

    def skip(self, name: str) -> None:
        """Skip a step, or take it up again if it is skipped."""
        guide = self.state.guide
        step = None if guide is None else guide.step(name)
        if guide is None or step is None:
            return
        is_skipped = name in (self._log.record().skipped or {})
        if is_skipped:
            self._choose(guide, lambda: self._log.add(UNSKIP, "", name))
        elif step.is_over:
            self._context.notify(f"{step.title} is {step.state.value}.")
        else:
            self._choose(guide, lambda: self._log.add(SKIP, f"skipped by {user_and_day(time.time())}", name))

    def change_path(self) -> None:
        """Choose the other path, or go back to the recommended one."""
        guide = self.state.guide
        if guide is None:
            return
        other = GdrPath.PEERMEM if guide.choice.recommended is GdrPath.DMABUF else GdrPath.DMABUF
        value = "" if self._log.record().path else other.value
        self._choose(guide, lambda: self._log.add(PATH, value, by=f"chosen by {user_and_day(time.time())}"))

    def _choose(self, guide: Guide, save: Callable[[], None]) -> None:
        self._remember_boot(guide)
        try:
            save()
        except NotWritten as error:
            self._context.report_error(str(error))
            return
        self.refresh()
