"""Runs the tests of a series one after another, and rates their results.

`run` blocks, and belongs in a thread if there is a screen. Whatever happens in it, the processes of the
running test are stopped before it returns.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from probes.bandwidth.model.planned_series import PlannedTest, Series
from probes.bandwidth.model.rating import Assessment, headline, rate, stalls
from probes.bandwidth.model.result import MOST_SAMPLES, Ending, Result
from probes.bandwidth.model.samples import HOST_MEMORY, STAGED, Sample
from probes.bandwidth.results.baseline import machine_type
from probes.bandwidth.results.slow_results import open_findings
from probes.base.origin import origin_word
from probes.base.unknown import Unknown, known
from probes.checks.registry import findings
from probes.facts.system.platform import PlatformFacts
from probes.host.protocol import Host
from probes.queries.finding import Finding
from probes.snapshot.examination import Examination
from tui.bandwidth.events import (
    BandwidthEvent,
    ImpactCheckStarted,
    SeriesEnded,
    SeriesStarted,
    TestEnded,
    TestStarted,
)
from tui.bandwidth.impact_check import abort_reason
from tui.bandwidth.processes import ProcessStarter
from tui.bandwidth.runner import TestRunner

Choose = Callable[[Sequence[Result]], PlannedTest | None]
"""Results so far → the next test, or None at the end."""


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

    def run(self, series: Series, choose: Choose | None = None) -> tuple[Result, ...]:
        """Run all tests; return the results of those that were started.

        With `choose`, run the tests that it returns instead, until it returns None.
        """
        self._on_event(SeriesStarted(series))
        results: list[Result] = []
        aborted = ""
        tests = series.tests if choose is None else iter(lambda: choose(results), None)
        for number, test in enumerate(tests, 1):
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
        uneven = stalls(runner.samples, settings)
        ending, failure = runner.outcome()
        platform = self._examination.node.platform
        least = test.limit.least
        return Result(
            taken_at=taken_at,
            seconds=seconds,
            node=known(platform.hostname, "") if isinstance(platform, PlatformFacts) else "",
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
        if not judgment.is_slow:
            return judgment
        if self._findings is None:
            self._findings = findings(self._examination)
        return replace(judgment, findings=open_findings(self._examination, self._findings, test.pair))


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
