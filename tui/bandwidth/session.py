"""Plans, runs and saves bandwidth tests, for the screens and the command line."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from probes.bandwidth.model.command import Refused
from probes.bandwidth.model.expected import ExpectedPair
from probes.bandwidth.model.planned_series import PlannedTest, Series
from probes.bandwidth.model.request import Request
from probes.bandwidth.model.result import Ending, Result
from probes.bandwidth.planning.affected_jobs import affected_by
from probes.bandwidth.planning.expected_pairs import rows_of, with_expected
from probes.bandwidth.planning.series import plan_series
from probes.base.origin import Source
from probes.base.unknown import Unknown
from probes.facts.network.tcp_ports import free_port
from probes.facts.system.tools import PERFTEST_PORT
from probes.host.protocol import Host
from probes.snapshot.examination import Examination
from probes.snapshot.rates import Reading
from tui.actions.guards import no_actions_here
from tui.bandwidth.events import BandwidthEvent, SaveFailed, SeriesEnded, TestEnded
from tui.bandwidth.impact_check import reread, with_processes
from tui.bandwidth.processes import LocalProcessStarter, ProcessStarter
from tui.bandwidth.results_store import ResultsStore, StoreError
from tui.bandwidth.series_runner import Choose, SeriesRunner
from tui.files.expected_file import read_table, site_table
from tui.runtime.lock import ActionLock, LockTaken
from tui.settings.current import current

_LOCK: str | None = None  # directory of the lock file; None: this user's


class BenchSession:
    """Plans tests and runs one series at a time. `run` blocks; everything else is quick."""

    def __init__(
        self,
        host: Host,
        store: ResultsStore,
        read_only: bool = False,
        starter: ProcessStarter | None = None,
        pause: Callable[[float], object] = time.sleep,
        expected: Sequence[ExpectedPair] | None = None,
        expected_trouble: str = "",
    ) -> None:
        """`starter` starts the tools; by default the one that fits the host.

        `expected`: what machines reach; by default gdrtop's own table. `expected_trouble`: why the
        site's table is not used, noted on every test.
        """
        self._host, self._read_only, self.store = host, read_only, store
        self._given_starter, self._pause = starter, pause
        self._expected = rows_of(None) if expected is None else expected
        self._expected_trouble = expected_trouble
        self._runner: SeriesRunner | None = None

    @property
    def refusal(self) -> str:
        """Return why no test can run on this host, or ""."""
        if self._host.origin.source is Source.REMOTE:
            return "bandwidth tests are not run over a connection; run gdrtop on the node itself"
        return no_actions_here(self._host.origin, self._read_only)

    def plan(self, examination: Examination, request: Request) -> Series | Refused:
        """Return the tests of a request, on a free TCP port."""
        port = free_port(self._host, PERFTEST_PORT)
        # If the sockets cannot be read, perftest itself reports a port that is in use.
        series = plan_series(examination, request, PERFTEST_PORT if isinstance(port, Unknown) else port)
        if isinstance(series, Refused):
            return series
        return with_expected(examination, series, self._expected, self._expected_trouble)

    def affected_by(
        self, examination: Examination, series: Series, before: Reading | None = None
    ) -> tuple[str, ...]:
        """Return whom the series would affect, a line each; a person must confirm it."""
        return affected_by(examination, series.tests, before)

    def affected_now(
        self, examination: Examination, series: Series, before: Reading | None
    ) -> tuple[Examination, tuple[str, ...]]:
        """Return whom the series would affect by the current processes, and the examination with these."""
        current = with_processes(self._host, examination)
        return current, affected_by(current, series.tests, before)

    def run(
        self,
        examination: Examination,
        series: Series,
        on_event: Callable[[BandwidthEvent], object],
        may_disturb: bool = False,
        choose: Choose | None = None,
    ) -> tuple[Result, ...] | Refused:
        """Run the series to its end, and save its results; with `choose`, the tests that it returns.

        Unless it `may_disturb`, which a person has confirmed, a real node is checked again before each test
        but the first, and the series ends before a test that would affect running jobs.
        """
        if self.refusal:
            return self._refused(self.refusal, on_event)

        def save_and_forward(event: BandwidthEvent) -> None:
            on_event(event)
            if isinstance(event, TestEnded) and event.result.ending is Ending.DONE:
                try:
                    self.store.add(event.result)
                except StoreError as error:
                    on_event(SaveFailed(str(error)))

        def affected_now(test: PlannedTest) -> tuple[str, ...]:
            # Our own last test may still show: the utilization of a GPU is a mean of up to a second.
            after = self._affected_after_reread
            return after(examination, test) and after(examination, test)

        # The jobs of a simulated node never change.
        check = None if may_disturb or not self._is_live else affected_now
        self._runner = SeriesRunner(self._host, self._starter(), examination, save_and_forward, check)
        try:
            with ActionLock(_LOCK) if self._is_live else nullcontext():
                return self._runner.run(series, choose)
        except LockTaken as taken:
            return self._refused(str(taken), on_event)
        finally:
            self._runner = None

    def _affected_after_reread(self, examination: Examination, test: PlannedTest) -> tuple[str, ...]:
        current, before = reread(self._host, examination, self._pause)
        return affected_by(current, (test,), before)

    def _refused(self, why: str, on_event: Callable[[BandwidthEvent], object]) -> Refused:
        on_event(SeriesEnded((), refused=why))
        return Refused(why)

    @property
    def _is_live(self) -> bool:
        return self._host.origin.source is Source.LIVE

    def _starter(self) -> ProcessStarter:
        if self._given_starter is not None:
            return self._given_starter
        if self._is_live:
            return LocalProcessStarter()
        from probes.simulation.host import SimulatedHost
        from tui.bandwidth.simulated_processes import SimulatedProcessStarter

        assert isinstance(self._host, SimulatedHost)
        return SimulatedProcessStarter(self._host)

    def stop(self) -> None:
        """Stop the running series; may be called from any thread."""
        if (runner := self._runner) is not None:
            runner.stop()

    def skip(self) -> None:
        """Stop the running test and go on with the next one; may be called from any thread."""
        if (runner := self._runner) is not None:
            runner.skip()


def expected_rows(host: Host, given: str | None = None) -> tuple[tuple[ExpectedPair, ...], str]:
    """Return what machines reach, and why the site's table is not used, else "".

    A simulated node has no site. Raise TableError for a `given` file that cannot be used.
    """
    if given is not None:
        return rows_of(read_table(given)), ""
    if host.origin.source is not Source.LIVE:
        return rows_of(None), ""
    table, trouble = site_table(
        str(current().configured("bandwidth.expected").value),
        is_required="bandwidth.expected" in current().values,
    )
    return rows_of(table), trouble
