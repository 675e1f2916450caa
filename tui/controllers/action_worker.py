"""Run the dispatcher in background threads, so that a slow log or a long step never freezes the screen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from tui.runtime.background import BackgroundTask, Call, Failed, Then, call_in_thread

if TYPE_CHECKING:  # 66 ms that the first screen does not need
    from probes.host.protocol import Host
    from probes.plans.catalogue import Offer
    from probes.queries.finding import Finding
    from probes.snapshot.examination import Examination
    from tui.actions.audit_log import PastRun
    from tui.actions.dispatcher import Dispatcher, Prepared
    from tui.actions.events import RunEvent
    from tui.screens.run import RunState


class ActionWorker(BackgroundTask["RunEvent"]):
    """Ask the dispatcher for actions and runs, and run one action at a time.

    `host` returns None until the node is open.
    """

    def __init__(self, host: Callable[[], Host | None], read_only: bool, call: Call) -> None:
        super().__init__(call, "action")
        self._host, self._read_only = host, read_only
        self._lock = threading.Lock()
        self._dispatcher: Dispatcher | None = None
        self._stop_reason = ""
        self.state: RunState | None = None  # of the newest run

    # Questions

    def offers(
        self,
        examination: Examination,
        findings: Sequence[Finding],
        then: Then[tuple[tuple[Offer, ...], str]],
        failed: Failed,
    ) -> None:
        """Get all actions, and the reason if none can run here."""

        def ask() -> tuple[tuple[Offer, ...], str]:
            dispatcher = self._opened()
            return dispatcher.offers(examination, findings), dispatcher.refusal

        call_in_thread(self._call, ask, then, failed)

    def history(self, then: Then[tuple[tuple[PastRun, ...], tuple[str, ...]]], failed: Failed) -> None:
        """Get the runs in the audit logs, newest first, and why existing logs could not be read."""
        call_in_thread(self._call, lambda: self._opened().history(), then, failed)

    def undo_of(self, run: PastRun, then: Then[Offer], failed: Failed) -> None:
        """Get the action that undoes a past run."""
        call_in_thread(self._call, lambda: self._opened().undo_of(run), then, failed)

    def prepared(self, offer: Offer, examination: Examination) -> Prepared | str:
        """Return an action ready to be confirmed, or why it has no plan."""
        return self._opened().prepared(offer, examination)

    @property
    def dispatcher(self) -> Dispatcher:
        """Return what runs actions and has their log."""
        return self._opened()

    def _opened(self) -> Dispatcher:
        with self._lock:
            if self._dispatcher is None:
                from tui.actions.dispatcher import Dispatcher

                host = self._host()
                if host is None:
                    raise RuntimeError("Still reading the node; try again in a moment")
                self._dispatcher = Dispatcher(host, self._read_only)
            return self._dispatcher

    # The run

    def start(
        self,
        prepared: Prepared,
        typed: str,
        state: RunState,
        on_ready: Callable[[], object],
        get_password: Callable[[], bool],
        around: AbstractContextManager[object],
    ) -> None:
        """Run an action in a thread, inside the context manager `around`.

        `on_ready` is called in the screen's thread when there are events.
        """
        from tui.actions.events import RunBegan, RunEnded, RunOutcome

        self._join_last()
        dispatcher = self._opened()
        self.state, self._stop_reason = state, ""

        def on_event(event: RunEvent) -> None:
            if isinstance(event, RunBegan) and self._stop_reason:
                dispatcher.stop(self._stop_reason)  # requested before there was anything to stop
            self.put(event)

        def run() -> None:
            with around:
                dispatcher.run(prepared, typed, on_event, get_password)

        self._start(on_ready, run, lambda why: on_event(RunEnded(RunOutcome.UNKNOWN, why)))

    def stop(self, why: str) -> None:
        """Begin no further step of the run."""
        self._stop_reason = why
        if self._dispatcher is not None:
            self._dispatcher.stop(why)

    def abandon_step(self) -> None:
        """Stop waiting for the running step."""
        if self._dispatcher is not None:
            self._dispatcher.abandon_step()
