"""The dispatcher behind the screens: a slow log and a step under way never freeze the screen.

What takes time runs in daemon threads, and its answer is handed to the screen's thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from tui.runtime.background import Call, Failed, Then, Worker, ask_in_thread

if TYPE_CHECKING:  # 66 ms, of which the first screen knows nothing
    from probes.host.protocol import Host
    from probes.plans.catalogue import Offer
    from probes.queries.finding import Finding
    from probes.snapshot.examination import Examination
    from tui.actions.audit_log import PastRun
    from tui.actions.dispatcher import Dispatcher, Prepared
    from tui.actions.events import Event
    from tui.screens.run.state import RunState


class Acting(Worker["Event"]):
    """Asks the dispatcher, and has it run one action at a time.

    `host` is None until the node was opened; `call` has something done in the screen's thread, from any.
    """

    def __init__(
        self,
        host: Callable[[], Host | None],
        read_only: bool,
        call: Call,
    ) -> None:
        super().__init__(call, "action")
        self._host, self._read_only = host, read_only
        self._lock = threading.Lock()
        self._dispatcher: Dispatcher | None = None
        self._stop_why = ""
        self.state: RunState | None = None  # of the newest run

    # Asking

    def offers(
        self,
        examination: Examination,
        findings: Sequence[Finding],
        then: Then[tuple[tuple[Offer, ...], str]],
        failed: Failed,
    ) -> None:
        """All that could be done, and why nothing at all is."""

        def ask() -> tuple[tuple[Offer, ...], str]:
            dispatcher = self._opened()
            return dispatcher.offers(examination, findings), dispatcher.refusal

        ask_in_thread(self._call, ask, then, failed)

    def history(self, then: Then[tuple[tuple[PastRun, ...], tuple[str, ...]]], failed: Failed) -> None:
        """The runs in the logs, the newest first; and why logs that are there are not read."""
        ask_in_thread(self._call, lambda: self._opened().history(), then, failed)

    def undo_of(self, run: PastRun, then: Then[Offer], failed: Failed) -> None:
        """What takes a past run back."""
        ask_in_thread(self._call, lambda: self._opened().undo_of(run), then, failed)

    def prepared(self, offer: Offer, examination: Examination) -> Prepared | str:
        """An offer ready to be confirmed; a sentence where it has no plan."""
        return self._opened().prepared(offer, examination)

    def _opened(self) -> Dispatcher:
        with self._lock:
            if self._dispatcher is None:
                from tui.actions.dispatcher import Dispatcher

                host = self._host()
                if host is None:
                    raise RuntimeError("the node is not open yet")
                self._dispatcher = Dispatcher(host, self._read_only)
            return self._dispatcher

    # Running

    def start(
        self,
        prepared: Prepared,
        typed: str,
        state: RunState,
        hear: Callable[[], object],
        get_password: Callable[[], bool],
        around: AbstractContextManager[object],
    ) -> None:
        """Runs an action in a thread, inside of `around`.

        `hear` is called in the screen's thread when there is something to take.
        """
        from tui.actions.events import Outcome, RunBegan, RunEnded

        self._await_last()
        dispatcher = self._opened()
        self.state, self._stop_why = state, ""

        def told(event: Event) -> None:
            if isinstance(event, RunBegan) and self._stop_why:
                dispatcher.stop(self._stop_why)  # wanted before there was anything to stop
            self.tell(event)

        def run() -> None:
            with around:
                dispatcher.run(prepared, typed, told, get_password)

        def failed(why: str) -> None:
            told(RunEnded(Outcome.UNKNOWN, why))

        self._work(hear, run, failed)

    def stop(self, why: str) -> None:
        """Begins no further step of the run under way."""
        self._stop_why = why
        if self._dispatcher is not None:
            self._dispatcher.stop(why)

    def give_up(self) -> None:
        """Waits no longer for the step under way."""
        if self._dispatcher is not None:
            self._dispatcher.give_up()
