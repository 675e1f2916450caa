"""The one way to measure: screens and command line plan, run and keep tests by this."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from probes.bandwidth.model.planned_test import PlannedTest, Series
from probes.bandwidth.model.request import Request
from probes.bandwidth.model.result import Ending, Result
from probes.bandwidth.planning.affected_jobs import affected_by
from probes.bandwidth.planning.series import plan_series
from probes.bandwidth.results.baseline import other_type_hint, updated_baseline
from probes.bandwidth.tools.command import Refused
from probes.base.origin import Source
from probes.base.unknown import Unknown
from probes.facts.system.tcp_ports import free_port
from probes.facts.system.tools import PERFTEST_PORT
from probes.host.protocol import Host
from probes.snapshot.examination import Examination
from probes.snapshot.rates import Reading
from tui.actions.guards import no_actions_here
from tui.bandwidth.events import BandwidthEvent, SaveFailed, SeriesEnded, TestEnded
from tui.bandwidth.impact_check import reread, with_processes
from tui.bandwidth.processes import LocalProcessStarter, ProcessStarter
from tui.bandwidth.series_runner import SeriesRunner
from tui.runtime.lock import ActionLock, LockTaken

_LOCK: str | None = None  # the directory of the lock; None: of this user's


class ResultsStore(Protocol):
    """Where results are kept, and the baseline of this machine type."""

    def add(self, result: Result) -> None:
        """Keeps one; StoreError, with a sentence, where it cannot be."""

    def results(self) -> tuple[Result, ...]:
        """All that are kept, the oldest first."""

    def why_unread(self) -> str:
        """Why results that are there are not read, a sentence; "" where they are, or where there are none."""

    def baseline(self, machine: str) -> tuple[Result, ...]:
        """What nodes of this type are expected to give; () where nothing was saved."""

    def no_baseline(self, machine: str) -> str:
        """Why there is none for this type where one might be expected; "" where there is, or none like it."""

    def save_baseline(self, results: tuple[Result, ...]) -> str:
        """Put the results in the baseline of their machine type; return its place, or raise StoreError.

        A test that the baseline has already is replaced, the others stay.
        """


class StoreError(Exception):
    """A result could not be written; the message says why."""


class MemoryResultsStore:
    """The results of a simulated node: kept as long as the program runs."""

    def __init__(self) -> None:
        self._results: list[Result] = []
        self._baselines: dict[str, tuple[Result, ...]] = {}

    def add(self, result: Result) -> None:
        """Keeps one."""
        self._results.append(result)

    def results(self) -> tuple[Result, ...]:
        """All, the oldest first."""
        return tuple(self._results)

    def why_unread(self) -> str:
        """Memory is always read."""
        return ""

    def baseline(self, machine: str) -> tuple[Result, ...]:
        """What was saved for this type."""
        return self._baselines.get(machine, ())

    def no_baseline(self, machine: str) -> str:
        """Whether only another type of the same product has one."""
        return "" if machine in self._baselines else other_type_hint(machine, tuple(self._baselines))

    def save_baseline(self, results: tuple[Result, ...]) -> str:
        """Keeps what was measured as the baseline."""
        new = updated_baseline(results, self.baseline)
        if isinstance(new, Refused):
            raise StoreError(new.reason)
        self._baselines[new.machine] = new.results
        return "the memory of this gdrtop: a simulated node has no file"


class BenchSession:
    """Plans tests, and runs one series at a time; `run` blocks, all else is quick."""

    def __init__(
        self,
        host: Host,
        store: ResultsStore,
        read_only: bool = False,
        processes: ProcessStarter | None = None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """`processes`: what starts tests; None: what belongs to the host."""
        self._host, self._read_only, self.store = host, read_only, store
        self._given, self._pause = processes, pause
        self._run: SeriesRunner | None = None

    @property
    def refusal(self) -> str:
        """Why nothing at all is measured on this host; "" where tests are possible."""
        return no_actions_here(self._host.origin, self._read_only)

    def series(self, examination: Examination, request: Request) -> Series | Refused:
        """The tests of a wish, on a TCP port that is free now."""
        port = free_port(self._host, PERFTEST_PORT)
        # Where the sockets cannot be seen, perftest itself says that its port is taken.
        return plan_series(examination, request, PERFTEST_PORT if isinstance(port, Unknown) else port)

    def affected_by(
        self, examination: Examination, series: Series, before: Reading | None = None
    ) -> tuple[str, ...]:
        """Who would feel it, a line each: to be asked for before it is run."""
        return affected_by(examination, series.tests, before)

    def affected_now(
        self, examination: Examination, series: Series, before: Reading | None
    ) -> tuple[Examination, tuple[str, ...]]:
        """The same by the processes of this moment; the examination with these."""
        seen = with_processes(self._host, examination)
        return seen, affected_by(seen, series.tests, before)

    def run(
        self,
        examination: Examination,
        series: Series,
        hear: Callable[[BandwidthEvent], object],
        may_disturb: bool = False,
    ) -> tuple[Result, ...] | Refused:
        """Runs it to its end, and keeps what was measured.

        Unless it `may_disturb`, as somebody has confirmed, a real node is looked at again before each test
        but the first, and the series ends where somebody would feel that by now.
        """
        if self.refusal:
            return self._refused(self.refusal, hear)

        def told(event: BandwidthEvent) -> None:
            hear(event)
            if isinstance(event, TestEnded) and event.result.ending is Ending.DONE:
                try:
                    self.store.add(event.result)
                except StoreError as error:
                    hear(SaveFailed(str(error)))

        def who_has_come(test: PlannedTest) -> tuple[str, ...]:
            felt: tuple[str, ...] = ()
            for _ in range(2):
                # The second time nothing is left of our own: a GPU's utilisation is a mean of up to a second.
                seen, before = reread(self._host, examination, self._pause)
                felt = affected_by(seen, (test,), before)
                if not felt:
                    break
            return felt

        # The jobs of a simulated node never change.
        look = None if may_disturb or not self._is_live else who_has_come
        self._run = SeriesRunner(self._host, self._processes(), examination, told, look)
        try:
            with self._lock():
                return self._run.run(series)
        except LockTaken as taken:
            return self._refused(str(taken), hear)
        finally:
            self._run = None

    def _refused(self, why: str, hear: Callable[[BandwidthEvent], object]) -> Refused:
        hear(SeriesEnded((), refused=why))
        return Refused(why)

    @property
    def _is_live(self) -> bool:
        return self._host.origin.source is Source.LIVE

    def _lock(self) -> AbstractContextManager[object]:
        return ActionLock(_LOCK) if self._is_live else nullcontext()

    def _processes(self) -> ProcessStarter:
        if self._given is not None:
            return self._given
        if self._is_live:
            return LocalProcessStarter()
        from probes.simulation.host import SimulatedHost
        from tui.bandwidth.simulated_processes import SimulatedProcessStarter

        assert isinstance(self._host, SimulatedHost)
        return SimulatedProcessStarter(self._host)

    def stop(self) -> None:
        """Ends the series under way; from any thread."""
        run = self._run
        if run is not None:
            run.stop()

    def skip(self) -> None:
        """Ends the test under way, and goes on with the next; from any thread."""
        run = self._run
        if run is not None:
            run.skip()
