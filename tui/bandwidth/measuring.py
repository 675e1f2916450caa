"""The bench behind the screens: plans, runs and keeps in daemon threads, so that no screen freezes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tui.telling import Call, Failed, Telling, Then, ask_in_thread

if TYPE_CHECKING:  # what tests need is loaded when somebody wants one
    from probes.bandwidth.choice import Choice
    from probes.bandwidth.commands import Refused
    from probes.bandwidth.planned import Series
    from probes.bandwidth.result import Result
    from probes.examination import Examination
    from probes.host import Host
    from probes.rates import Reading
    from tui.bandwidth.bench import Bench
    from tui.bandwidth.events import Event
    from tui.bandwidth.live_state import LiveState

_MOST_WAITING = 5000
"""Events that the screen has not taken yet; what is printed beyond is counted, and not shown."""


class Measuring:
    """Has the bench run one series at a time; `call` has something done in the screen's thread, from any."""

    def __init__(self, host: Callable[[], Host | None], read_only: bool, call: Call) -> None:
        self._host, self._read_only, self._call = host, read_only, call
        self._telling: Telling[Event] = Telling(call)
        self._lock = threading.Lock()
        self._bench: Bench | None = None
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self._is_planning = False
        self._next_plan: Callable[[], None] | None = None
        self.kept: tuple[Result, ...] = ()  # as they were read last, the oldest first
        self.ended_at = float("-inf")  # seconds of the host's clock, when the last series ended
        self.unshown = 0  # lines that came faster than they could be shown
        self.state: LiveState | None = None  # of the newest series

    def _opened(self) -> Bench:
        with self._lock:
            if self._bench is None:
                from tui.bandwidth.bench import Bench
                from tui.bandwidth.results_file import kept_results

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
        """All results that are kept, the oldest first."""

        def take(results: tuple[Result, ...]) -> None:
            self.kept = results
            then(results)

        ask_in_thread(self._call, lambda: self._opened().kept.results(), take, failed)

    def baseline(self, machine: str, then: Then[tuple[Result, ...]], failed: Failed) -> None:
        """What nodes of this type are expected to give."""
        ask_in_thread(self._call, lambda: self._opened().kept.baseline(machine), then, failed)

    def save_baseline(self, results: tuple[Result, ...], then: Then[str], failed: Failed) -> None:
        """Makes these results the baseline of their machine type; tells where it is."""
        from tui.bandwidth.bench import NotKept

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
        self, examination: Examination, choice: Choice, then: Then[Series | Refused], failed: Failed
    ) -> None:
        """The tests of a wish; while one is planned, only the newest wish waits."""

        def begin() -> None:
            self._is_planning = True
            ask_in_thread(
                self._call,
                lambda: self._opened().series(examination, choice),
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

    # Running

    @property
    def is_running(self) -> bool:
        """Whether a series is under way."""
        return self._thread is not None and self._thread.is_alive()

    def start(
        self, examination: Examination, series: Series, state: LiveState, hear: Callable[[], object]
    ) -> None:
        """Runs a series in a thread; `hear` is called in the screen's when there is something to take."""
        if self._thread is not None:
            self._thread.join(1.0)  # its end was told a moment before it is there
        bench = self._opened()
        self.state, self._is_stopped, self.unshown = state, False, 0
        self._telling.begin(hear)

        def run() -> None:
            from tui.bandwidth.events import LinePrinted, SeriesBegan, SeriesEnded

            def told(event: Event) -> None:
                if isinstance(event, SeriesBegan) and self._is_stopped:
                    bench.stop()  # wanted before there was anything to stop
                if isinstance(event, SeriesEnded):
                    self.ended_at = self.clock()
                if isinstance(event, LinePrinted) and self._telling.waiting >= _MOST_WAITING:
                    self.unshown += 1
                    return
                self._telling.tell(event)

            try:
                bench.run(examination, series, told)
            except Exception as error:  # the screen must say so and live on
                why = f"a fault of gdrtop: {type(error).__name__}: {error}"
                told(SeriesEnded((), refused=why))

        self._thread = threading.Thread(target=run, name="bandwidth", daemon=True)
        self._thread.start()

    def hush(self) -> None:
        """The screen has gone: nobody is told any more."""
        self._telling.hush()

    def take(self) -> list[Event]:
        """What was told since; the screen is called again when there is more."""
        return self._telling.take()

    def stop(self) -> None:
        """Ends the series under way."""
        self._is_stopped = True
        if self._bench is not None:
            self._bench.stop()

    def skip(self) -> None:
        """Ends the test under way, and goes on with the next."""
        if self._bench is not None:
            self._bench.skip()

    def wait(self, seconds: float) -> bool:
        """Waits until nothing of a test runs any more; whether that is so."""
        if self._thread is not None:
            began = time.monotonic()
            while self._thread.is_alive() and time.monotonic() - began < seconds:
                self._thread.join(0.2)  # in pieces, so that signals are heard
        return not self.is_running
