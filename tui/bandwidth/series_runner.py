"""Runs tests one after another: starts their ends, reads their rows, ends them, and judges what came.

It blocks, and belongs in a thread of its own where there is a screen. Whatever happens in it, the ends of
the test under way are ended before it is left.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from probes.bandwidth.model.planned_test import PlannedTest, Series
from probes.bandwidth.model.rating import rate
from probes.bandwidth.model.result import MOST_SAMPLES, Ending, Result
from probes.bandwidth.results.baseline import machine_type
from probes.bandwidth.results.headline import headline, stalls
from probes.bandwidth.tools.samples import HOST_MEMORY, Sample
from probes.base.origin import origin_word
from probes.base.unknown import Unknown, known
from probes.facts.system.platform import PlatformFacts
from probes.host.protocol import Host
from probes.snapshot.examination import Examination
from tui.bandwidth.events import (
    BandwidthEvent,
    ImpactCheckStarted,
    SeriesEnded,
    SeriesStarted,
    TestEnded,
    TestStarted,
)
from tui.bandwidth.processes import ProcessStarter
from tui.bandwidth.series_abort import abort_reason
from tui.bandwidth.test_runner import TestRunner

_NOTHING = Sample("", "")


class SeriesRunner:
    """One series on one node; `stop` and `skip` may be called from any thread."""

    def __init__(
        self,
        host: Host,
        processes: ProcessStarter,
        examination: Examination,
        hear: Callable[[BandwidthEvent], object],
        look: Callable[[PlannedTest], Sequence[str]] | None = None,
    ) -> None:
        """`look`: who would feel a test now, a line each; asked before each but the first."""
        self._host, self._processes = host, processes
        self._examination, self._hear, self._look = examination, hear, look
        self._stopped, self._skipped = threading.Event(), threading.Event()

    def stop(self) -> None:
        """Ends the test under way, and begins no other."""
        self._stopped.set()

    def skip(self) -> None:
        """Ends the test under way, and goes on with the next."""
        self._skipped.set()

    def run(self, series: Series) -> tuple[Result, ...]:
        """Runs them all; the results of those that were begun."""
        self._hear(SeriesStarted(series))
        results: list[Result] = []
        aborted = ""
        for number, test in enumerate(series.tests, 1):
            aborted = self._who_has_come(test) if number > 1 else ""
            if self._stopped.is_set() or aborted:
                break
            self._skipped.clear()
            self._hear(TestStarted(number, test))
            result = self._run(test, results)
            results.append(result)
            self._hear(TestEnded(number, result))
        is_stopped = self._stopped.is_set()
        self._hear(SeriesEnded(tuple(results), is_stopped, aborted="" if is_stopped else aborted))
        return tuple(results)

    def _who_has_come(self, test: PlannedTest) -> str:
        """Why the next test is not begun; "" where nobody would feel it."""
        if self._look is None or self._stopped.is_set():
            return ""
        self._hear(ImpactCheckStarted())
        return abort_reason(self._look(test))

    def _is_unwanted(self) -> bool:
        return self._stopped.is_set() or self._skipped.is_set()

    def _run(self, test: PlannedTest, earlier: Sequence[Result]) -> Result:
        taken_at, began = self._host.wall_clock(), self._host.monotonic()
        with TestRunner(self._host, self._processes, test, self._hear) as meeting:
            while meeting.goes_on():
                if self._is_unwanted():
                    meeting.cancel()
                    break
        seconds = self._host.monotonic() - began
        settings = test.settings
        load = settings.load
        figure = headline(meeting.samples, settings)
        judgement = rate(figure or _NOTHING, test.limit, _host_memory(test, earlier))
        uneven = stalls(meeting.samples, settings)
        ending, trouble = meeting.ending()
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
            commands=tuple(shlex.join(end.command.argv) for end in test.processes),
            ending=ending,
            samples=tuple(meeting.samples[-MOST_SAMPLES:]),
            facts=tuple(meeting.facts),
            figure=figure,
            judgement=replace(judgement, why=f"{judgement.why}; {uneven}") if uneven else judgement,
            limit_gbps=None
            if least is None or isinstance(least.nominal_gbps, Unknown)
            else least.nominal_gbps,
            limit_by="" if least is None else least.name,
            trouble=trouble.text if trouble else "",
            trouble_raw=trouble.raw if trouble else "",
            wants_nics=not test.memory and settings.nics != (),
        )


def _host_memory(test: PlannedTest, earlier: Sequence[Result]) -> Sample | None:
    """What the same test with host memory on the same NIC gave in this series."""
    if not test.memory or test.memory == HOST_MEMORY:
        return None
    for result in reversed(earlier):
        same = replace(result.pair, gpu="", gpu_label="") == replace(test.pair, gpu="", gpu_label="")
        if result.memory == HOST_MEMORY and same and result.tool == test.tool:
            return result.figure if result.ending is Ending.DONE else None
    return None
