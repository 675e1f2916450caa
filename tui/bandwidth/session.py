"""Plans, runs and saves bandwidth tests, for the screens and the command line."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

from probes.bandwidth.model.command import Refused
from probes.bandwidth.model.expected import ExpectedPair
from probes.bandwidth.model.planned_series import PlannedTest, Series
from probes.bandwidth.model.rating import Assessment, headline, rate, stalls
from probes.bandwidth.model.request import Request
from probes.bandwidth.model.result import MOST_SAMPLES, Ending, Result
from probes.bandwidth.model.samples import HOST_MEMORY, STAGED, Sample
from probes.bandwidth.planning.affected_jobs import affected_by
from probes.bandwidth.planning.series import plan_series, rows_of, with_expected
from probes.bandwidth.results.against_earlier import machine_type
from probes.bandwidth.results.slow_results import open_findings, slow_tail
from probes.base.origin import Source, origin_word
from probes.base.unknown import Unknown, known
from probes.checks.registry import findings
from probes.facts.network.routes import free_port
from probes.facts.node import host_name
from probes.facts.system.tools import PERFTEST_PORT
from probes.host.protocol import Host
from probes.queries.finding import Finding
from probes.snapshot.examination import Examination
from probes.snapshot.rates import Reading
from tui.actions.guards import no_actions_here
from tui.bandwidth.events import (
    BandwidthEvent,
    ImpactCheckStarted,
    SaveFailed,
    SeriesEnded,
    SeriesStarted,
    TestEnded,
    TestStarted,
)
from tui.bandwidth.impact_check import abort_reason, reread, with_processes
from tui.bandwidth.processes import LocalProcessStarter, ProcessStarter
from tui.bandwidth.results_store import ResultsStore, StoreError
from tui.bandwidth.runner import TestRunner
from tui.files.expected_file import read_table, site_table
from tui.runtime.lock import ActionLock, LockTaken
from tui.settings.current import current

# `run` blocks, and belongs in a thread if there is a screen. Whatever happens in it, the processes of the
# running test are stopped before it returns.


class SeriesRunner:
    """One series on one node; `stop` and `skip` may be called from any thread."""

    def __init__(
        self,
        host: Host,
        starter: ProcessStarter,
        examination: Examination,
        on_event: Callable[[BandwidthEvent], object],
        affected_now: Callable[[PlannedTest], Sequence[str]] | None = None,
    ) -> None:
        """`affected_now` returns whom a test would affect, a line each; asked before each but the first."""
        self._host, self._starter = host, starter
        self._examination, self._on_event, self._affected_now = examination, on_event, affected_now
        self._findings: tuple[Finding, ...] | None = None  # checked when the first result is slow
        self._stopped, self._skipped = threading.Event(), threading.Event()

    def stop(self) -> None:
        """Stop the running test, and start no other."""
        self._stopped.set()

    def skip(self) -> None:
        """Stop the running test, and go on with the next one."""
        self._skipped.set()

    def run(self, series: Series) -> tuple[Result, ...]:
        """Run all tests; return the results of those that were started."""
        self._on_event(SeriesStarted(series))
        results: list[Result] = []
        aborted = ""
        for number, test in enumerate(series.tests, 1):
            aborted = self._abort_reason(test) if number > 1 else ""
            if self._stopped.is_set() or aborted:
                break
            self._skipped.clear()
            self._on_event(TestStarted(number, test))
            result = self._run(test, results)
            results.append(result)
            self._on_event(TestEnded(number, result))
        is_stopped = self._stopped.is_set()
        self._on_event(SeriesEnded(tuple(results), is_stopped, aborted="" if is_stopped else aborted))
        return tuple(results)

    def _abort_reason(self, test: PlannedTest) -> str:
        if self._affected_now is None or self._stopped.is_set():
            return ""
        self._on_event(ImpactCheckStarted())
        return abort_reason(self._affected_now(test))

    def _run(self, test: PlannedTest, earlier: Sequence[Result]) -> Result:
        taken_at, began = self._host.wall_clock(), self._host.monotonic()
        with TestRunner(self._host, self._starter, test, self._on_event) as runner:
            while runner.step():
                if self._stopped.is_set() or self._skipped.is_set():
                    runner.cancel()
                    break
        seconds = self._host.monotonic() - began
        settings = test.settings
        load = settings.load
        figure = headline(runner.samples, settings)
        host = _host_memory_figure(test, earlier)
        judgment = self._judge(test, figure, host)
        uneven = stalls(runner.samples, settings.is_endless)
        ending, failure = runner.outcome()
        least = test.limit.least
        return Result(
            taken_at=taken_at,
            seconds=seconds,
            node=known(host_name(self._examination.node), ""),
            machine=machine_type(self._examination),
            origin=origin_word(self._host.origin),
            title=test.title,
            tool=test.tool,
            setup=test.setup.value,
            pair=test.pair,
            memory=test.memory,
            size_bytes=load.size_bytes,
            queue_pairs=load.queue_pairs,
            is_bidirectional=load.is_bidirectional,
            commands=tuple(shlex.join(process.command.argv) for process in test.processes),
            ending=ending,
            samples=tuple(runner.samples[-MOST_SAMPLES:]),
            facts=tuple(runner.facts),
            figure=figure,
            judgment=replace(judgment, why=f"{judgment.why}; {uneven}") if uneven else judgment,
            limit_gbps=None
            if least is None or isinstance(least.nominal_gbps, Unknown)
            else least.nominal_gbps,
            limit_by="" if least is None else least.name,
            expected_gbps=None if test.expected is None else test.expected.gbps,
            expected_machine="" if test.expected is None else test.expected.name,
            failure=failure.text if failure else "",
            failure_line=failure.raw if failure else "",
            over_network=test.memory in ("", STAGED) and settings.nics != (),
            cpu_seconds=runner.cpu_seconds(),
        )

    def _judge(self, test: PlannedTest, figure: Sample | None, host: Sample | None) -> Assessment:
        """Rate a figure; a slow one names the open findings on its path."""
        judgment = rate(figure or Sample("", ""), test.limit, host, test.expected)
        if late := slow_tail(figure, self._examination.cpu):
            return replace(judgment, why=late)
        if not judgment.is_slow:
            return judgment
        if self._findings is None:
            self._findings = findings(self._examination)
        return replace(
            judgment, findings=open_findings(self._examination, self._findings, test.pair, test.memory)
        )


def _host_memory_figure(test: PlannedTest, earlier: Sequence[Result]) -> Sample | None:
    """Return what the same test with host memory on the same NIC measured earlier in this series."""
    if not test.memory or test.memory == HOST_MEMORY:
        return None
    pair = replace(test.pair, gpu="", gpu_label="")
    for result in reversed(earlier):
        is_same = replace(result.pair, gpu="", gpu_label="") == pair and result.tool == test.tool
        if result.memory == HOST_MEMORY and is_same:
            return result.figure if result.ending is Ending.DONE else None
    return None


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
    ) -> tuple[Result, ...] | Refused:
        """Run the series to its end, and save its results.

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
                return self._runner.run(series)
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
