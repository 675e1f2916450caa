"""The bench behind the screens: plans, runs and keeps in daemon threads, so that no screen freezes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tui.runtime.background import Call, Failed, Then, Worker, ask_in_thread

if TYPE_CHECKING:  # what tests need is loaded when somebody wants one
    from probes.bandwidth.model.planned_test import Series
    from probes.bandwidth.model.request import Request
    from probes.bandwidth.model.result import Result
    from probes.bandwidth.tools.command import Refused
    from probes.host.protocol import Host
    from probes.snapshot.examination import Examination
    from probes.snapshot.rates import Reading
    from tui.bandwidth.events import Event
    from tui.bandwidth.session import Bench
    from tui.screens.bandwidth_run.state import LiveState

_MOST_WAITING = 5000
"""Events that the screen has not taken yet; what is printed beyond is counted, and not shown."""


class Measuring(Worker["Event"]):
    """Has the bench run one series at a time; `call` has something done in the screen's thread, from any."""

    def __init__(self, host: Callable[[], Host | None], read_only: bool, call: Call) -> None:
        super().__init__(call, "bandwidth")
        self._host, self._read_only = host, read_only
        self._lock = threading.Lock()
        self._bench: Bench | None = None
        self._is_stopped = False
        self._is_planning = False
        self._next_plan: Callable[[], None] | None = None
        self.kept: tuple[Result, ...] = ()  # as they were read last, the oldest first
        self.unread = ""  # why results that are there could not be read
        self.ended_at = float("-inf")  # seconds of the host's clock, when the last series ended
        self.unshown = 0  # lines that came faster than they could be shown
        self.state: LiveState | None = None  # of the newest series

    def _opened(self) -> Bench:
        with self._lock:
            if self._bench is None:
                from tui.bandwidth.results_store import kept_results
                from tui.bandwidth.session import Bench

                host = self._host()
                if host is None:
                    raise RuntimeError("the node is not open yet")
                self._bench = Bench(host, kept_results(host.origin), self._read_only)
            return self._bench

    # Asking

    @property
    def refusal(self) -> str:
        """Why nothing is measured here; "" where tests are possible."""
        return self._opened().refusal

    def clock(self) -> float:
        """Seconds of the node's clock."""
        host = self._host()
        return 0.0 if host is None else host.monotonic()

    def now(self) -> float:
        """Seconds since 1970 by the node's clock."""
        host = self._host()
        return 0.0 if host is None else host.wall_clock()

    def load(self, then: Then[tuple[Result, ...]], failed: Failed) -> None:
        """All results that are kept, the oldest first; `unread` tells why those that are there are not."""

        def ask() -> tuple[tuple[Result, ...], str]:
            kept = self._opened().kept
            return kept.results(), kept.why_unread()

        def take(told: tuple[tuple[Result, ...], str]) -> None:
            self.kept, self.unread = told
            then(self.kept)

        ask_in_thread(self._call, ask, take, failed)

    def baseline(
        self, machine: str, then: Callable[[tuple[Result, ...], str], object], failed: Failed
    ) -> None:
        """What nodes of this type are expected to give, and why that is not known where it might be."""

        def ask() -> tuple[tuple[Result, ...], str]:
            kept = self._opened().kept
            return kept.baseline(machine), kept.no_baseline(machine)

        ask_in_thread(self._call, ask, lambda told: then(*told), failed)

    def save_baseline(self, results: tuple[Result, ...], then: Then[str], failed: Failed) -> None:
        """Makes these results the baseline of their machine type; tells where it is."""
        from tui.bandwidth.session import NotKept

        def save() -> tuple[str, str]:
            try:
                return self._opened().kept.save_baseline(results), ""
            except NotKept as error:
                return "", str(error)

        def take(told: tuple[str, str]) -> None:
            if told[1]:
                failed(told[1])
            else:
                then(told[0])

        ask_in_thread(self._call, save, take, failed)

    def plan(
        self, examination: Examination, request: Request, then: Then[Series | Refused], failed: Failed
    ) -> None:
        """The tests of a wish; while one is planned, only the newest wish waits."""

        def begin() -> None:
            self._is_planning = True
            ask_in_thread(
                self._call,
                lambda: self._opened().series(examination, request),
                lambda answer: self._planned(lambda: then(answer)),
                lambda what: self._planned(lambda: failed(what)),
            )

        if self._is_planning:
            self._next_plan = begin
        else:
            begin()

    def _planned(self, tell: Callable[[], object]) -> None:
        self._is_planning = False
        begin, self._next_plan = self._next_plan, None
        if begin is None:
            tell()
        else:
            begin()

    def felt_by(self, examination: Examination, series: Series, before: Reading | None) -> tuple[str, ...]:
        """Who would feel it, a line each."""
        return self._opened().felt_by(examination, series, before)

    def look(
        self,
        examination: Examination,
        series: Series,
        before: Reading | None,
        then: Callable[[Examination, tuple[str, ...]], object],
        failed: Failed,
    ) -> None:
        """Who would feel it by the processes of this moment, and the examination with these."""
        ask_in_thread(
            self._call,
            lambda: self._opened().felt_now(examination, series, before),
            lambda told: then(*told),
            failed,
        )

    # Running

    def start(
        self,
        examination: Examination,
        series: Series,
        state: LiveState,
        hear: Callable[[], object],
        may_disturb: bool,
    ) -> None:
        """Runs a series in a thread; `hear` is called in the screen's when there is something to take.

        Unless it `may_disturb`, it ends before a test that somebody would feel by then.
        """
        from tui.bandwidth.events import LinePrinted, SeriesBegan, SeriesEnded

        self._await_last()
        bench = self._opened()
        self.state, self._is_stopped, self.unshown = state, False, 0

        def told(event: Event) -> None:
            if isinstance(event, SeriesBegan) and self._is_stopped:
                bench.stop()  # wanted before there was anything to stop
            if isinstance(event, SeriesEnded):
                self.ended_at = self.clock()
            if isinstance(event, LinePrinted) and self.waiting >= _MOST_WAITING:
                self.unshown += 1
                return
            self.tell(event)

        def failed(why: str) -> None:
            told(SeriesEnded((), refused=why))

        self._work(hear, lambda: bench.run(examination, series, told, may_disturb), failed)

    def stop(self) -> None:
        """Ends the series under way."""
        self._is_stopped = True
        if self._bench is not None:
            self._bench.stop()

    def skip(self) -> None:
        """Ends the test under way, and goes on with the next."""
        if self._bench is not None:
            self._bench.skip()
