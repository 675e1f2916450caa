"""Find the logs of NCCL jobs, and follow the one that is open."""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING

from probes.base.text import printable
from probes.base.unknown import Maybe, Unknown
from probes.host.machine.local import LocalHost
from probes.live.processes.job_logs import FoundLogs, JobLog, LogPath, find_logs
from tui.runtime.log_follower import Followed, LogFollower
from tui.screens.keys import KEYS
from tui.screens.nccl import NcclScreen, NcclState

if TYPE_CHECKING:
    from probes.host.protocol import FileRange
    from tui.controllers.context import AppContext


class NcclController:
    """The NCCL screen's state, and the threads that search and read."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self.state = NcclState()
        self._follower: LogFollower | None = None
        self._paths: tuple[str, ...] = ()  # of the log that is followed
        self._reading: LogFollower | None = None  # a read that hangs must not keep others from being read
        self._is_searching = False
        self._wanted_job = ""  # whose log to open when it is found

    def show(self, job: str = "") -> None:
        """Show the screen; with a job, open its log."""
        self._wanted_job = job
        self._context.show(NcclScreen, lambda: NcclScreen(self.state))
        self.search()

    # Search

    def search(self) -> None:
        """Search for the logs of the jobs that run now."""
        host, sample = self._context.host, self._context.live.newest
        if host is None or sample is None:
            self.state.fail(f"Still reading the node; try again in a moment ({KEYS['refresh'].display}).")
            self._context.draw(NcclScreen)
        elif not self._is_searching:
            self._is_searching = True
            self._context.run_in_thread(lambda: find_logs(host, sample), self._take_found, self._fail_search)

    def _take_found(self, found: FoundLogs) -> None:
        self._is_searching = False
        self.state.set_found(found)
        wanted, self._wanted_job = self._wanted_job, ""
        if wanted and self.state.select_job(wanted):
            self.open(self.state.selected)
        self._context.draw(NcclScreen)

    def _fail_search(self, message: str) -> None:
        self._is_searching = False
        self.state.fail(message)
        self._context.draw(NcclScreen)

    # Reading

    def open(self, key: str) -> None:
        """Follow a log, and show it."""
        log, host = self.state.log(key), self._context.host
        if log is None:
            return
        if not log.job:
            host = LocalHost()
        if host is not None and (key != self.state.opened or log.paths != self._paths):
            self.state.open(key)
            self._follower, self._paths = LogFollower(host, log.files), log.paths
        for screen in self._context.shown(NcclScreen):
            screen.show_opened()
        self.read()

    def open_path(self, path: str) -> None:
        """Follow a file that the user named, on the machine where gdrtop runs."""
        path = os.path.abspath(os.path.expanduser(path))
        shown = printable(path, 1024)

        def take(found: Maybe[FileRange]) -> None:
            if isinstance(found, Unknown):
                fail(str(found))
                return
            log = JobLog("", "", "file", (LogPath(path, shown, found.size_bytes),))
            self.state.add_typed(log)
            self.open(log.key)

        def fail(why: str) -> None:
            self._context.notify(f"{shown} cannot be read: {why}", "warning")

        self._context.run_in_thread(lambda: LocalHost().read_range(path, 0, 0), take, fail)

    def read(self) -> None:
        """Read what is new, if nothing is being read."""
        follower = self._follower
        if follower is None or self._reading is follower:
            return
        self._reading = follower

        def take(followed: Followed) -> None:
            if follower is not self._follower:  # another log was opened meanwhile
                return
            self._reading = None
            before = self.state.followed
            self.state.set_followed(followed)
            if followed != before:
                self._context.draw(NcclScreen)
            has_read = before is None or followed.read_bytes > before.read_bytes
            if followed.is_behind and has_read and self._context.shown(NcclScreen):
                self.read()

        def fail(message: str) -> None:
            if follower is self._follower:
                self._reading = None
                self.state.fail_reading(message)
                self._context.draw(NcclScreen)

        self._context.run_in_thread(follower.advance, take, fail)
