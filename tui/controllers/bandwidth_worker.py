"""Plan, run and save bandwidth tests in background threads, so that the screen never freezes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tui.runtime.background_task import BackgroundTask, Call, Failed, Then, call_in_thread

if TYPE_CHECKING:  # loaded with the first test
    from probes.bandwidth.model.command import Refused
    from probes.bandwidth.model.planned_series import Series
    from probes.bandwidth.model.request import Request
    from probes.bandwidth.model.result import Result
    from probes.host.protocol import Host
    from probes.snapshot.examination import Examination
    from probes.snapshot.rates import Reading
    from tui.bandwidth.events import BandwidthEvent
    from tui.bandwidth.results_store import ResultsStore
    from tui.bandwidth.session import BenchSession
    from tui.screens.bandwidth_run.state import SeriesState

_MOST_WAITING = 5000
"""Events that the screen has not taken yet. Lines beyond that are counted and not shown."""


class BandwidthWorker(BackgroundTask["BandwidthEvent"]):
    """Plan series of tests, and run one series at a time.

    `host` returns None until the node is open.
    """

    def __init__(self, host: Callable[[], Host | None], read_only: bool, call: Call) -> None:
        super().__init__(call, "bandwidth")
        self._host, self._read_only = host, read_only
        self._lock = threading.Lock()
        self._store: ResultsStore | None = None
        self._bench: BenchSession | None = None
        self._is_stopped = False
        self._is_planning = False
        self._next_plan: Callable[[], None] | None = None
        self.kept: tuple[Result, ...] = ()  # saved results, oldest first
        self.unread = ""  # why existing results could not be read
        self.ended_at = float("-inf")  # by the host's clock, when the last series ended
        self.unshown = 0  # lines dropped because they came too fast
        self.state: SeriesState | None = None  # of the newest series

    def _opened(self) -> BenchSession:
        store = self.store
        with self._lock:
            if self._bench is None:
                from tui.bandwidth.session import BenchSession, expected_rows

                host = self._opened_host()
                rows, trouble = expected_rows(host)
                self._bench = BenchSession(
                    host, store, self._read_only, expected=rows, expected_trouble=trouble
                )
            return self._bench

    def _opened_host(self) -> Host:
        host = self._host()
        if host is None:
            raise RuntimeError("Still reading the node; try again in a moment")
        return host

    # Questions

    @property
    def store(self) -> ResultsStore:
        """Where results are saved. It does not load what runs tests, which most dashboards never do."""
        with self._lock:
            if self._store is None:
                from tui.bandwidth.results_store import open_results_store

                self._store = open_results_store(self._opened_host().origin)
            return self._store

    @property
    def refusal(self) -> str:
        """Return why no test can run here, or ""."""
        return self._opened().refusal

    def clock(self) -> float:
        """Return the seconds of the node's monotonic clock."""
        host = self._host()
        return 0.0 if host is None else host.monotonic()

    def now(self) -> float:
        """Return the seconds since 1970 by the node's clock."""
        host = self._host()
        return 0.0 if host is None else host.wall_clock()

    def load(self, then: Then[tuple[Result, ...]], failed: Failed) -> None:
        """Load all saved results, oldest first; `unread` says why existing ones could not be read."""

        def apply(answer: tuple[tuple[Result, ...], str]) -> None:
            self.kept, self.unread = answer
            then(self.kept)

        call_in_thread(self._call, lambda: (self.store.results(), self.store.why_unread()), apply, failed)

    def baseline(
        self, machine: str, then: Callable[[tuple[Result, ...], str], object], failed: Failed
    ) -> None:
        """Load the baseline of a machine type, or why there is none."""
        call_in_thread(
            self._call,
            lambda: (self.store.baseline(machine), self.store.no_baseline(machine)),
            lambda answer: then(*answer),
            failed,
        )

    def save_baseline(self, results: tuple[Result, ...], then: Then[str], failed: Failed) -> None:
        """Save these results as the baseline of their machine type; `then` gets the path."""
        from tui.bandwidth.results_store import StoreError

        def save() -> tuple[str, str]:
            try:
                return self.store.save_baseline(results), ""
            except StoreError as error:
                return "", str(error)

        def apply(answer: tuple[str, str]) -> None:
            path, error = answer
            if error:
                failed(error)
            else:
                then(path)

        call_in_thread(self._call, save, apply, failed)

    def plan(
        self, examination: Examination, request: Request, then: Then[Series | Refused], failed: Failed
    ) -> None:
        """Plan the tests of a request; while one is being planned, only the newest request waits."""

        def begin() -> None:
            self._is_planning = True
            call_in_thread(
                self._call,
                lambda: self._opened().plan(examination, request),
                lambda answer: self._planned(lambda: then(answer)),
                lambda message: self._planned(lambda: failed(message)),
            )

        if self._is_planning:
            self._next_plan = begin
        else:
            begin()

    def _planned(self, report: Callable[[], object]) -> None:
        self._is_planning = False
        begin, self._next_plan = self._next_plan, None
        if begin is None:
            report()
        else:
            begin()

    def affected_by(
        self, examination: Examination, series: Series, before: Reading | None
    ) -> tuple[str, ...]:
        """Return the affected processes, a line each."""
        return self._opened().affected_by(examination, series, before)

    def check_impact(
        self,
        examination: Examination,
        series: Series,
        before: Reading | None,
        then: Callable[[Examination, tuple[str, ...]], object],
        failed: Failed,
    ) -> None:
        """Get the processes that are affected now, and the examination with them."""
        call_in_thread(
            self._call,
            lambda: self._opened().affected_now(examination, series, before),
            lambda answer: then(*answer),
            failed,
        )

    # The run

    def start(
        self,
        examination: Examination,
        series: Series,
        state: SeriesState,
        on_ready: Callable[[], object],
        may_disturb: bool,
    ) -> None:
        """Run a series in a thread; `on_ready` is called in the screen's thread when there are events.

        Unless it `may_disturb`, the series ends before a test that would affect running jobs.
        """
        from tui.bandwidth.events import LinePrinted, SeriesEnded, SeriesStarted

        bench = self._opened()
        self.state, self._is_stopped, self.unshown = state, False, 0

        def on_event(event: BandwidthEvent) -> None:
            if isinstance(event, SeriesStarted) and self._is_stopped:
                bench.stop()  # requested before there was anything to stop
            if isinstance(event, SeriesEnded):
                self.ended_at = self.clock()
            if isinstance(event, LinePrinted) and self.waiting >= _MOST_WAITING:
                self.unshown += 1
                return
            self.put(event)

        def failed(why: str) -> None:
            on_event(SeriesEnded((), refused=why))

        def run() -> None:
            bench.run(examination, series, on_event, may_disturb)

        self.run_in_background(on_ready, run, failed)

    def stop(self) -> None:
        """Stop the running series."""
        self._is_stopped = True
        if self._bench is not None:
            self._bench.stop()

    def skip(self) -> None:
        """Stop the running test and go on with the next."""
        if self._bench is not None:
            self._bench.skip()
