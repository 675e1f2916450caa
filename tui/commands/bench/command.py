"""`gdrtop bench`: bandwidth tests without a screen; planned, run and kept as in the dashboard."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TextIO

from probes.bandwidth.model.planned_test import LeftOut, Series
from probes.bandwidth.model.request import Mode
from probes.bandwidth.model.result import Ending, Result
from probes.bandwidth.results.against_earlier import changes
from probes.bandwidth.results.baseline import machine_type
from probes.bandwidth.tools.command import Refused
from probes.base.origin import Source
from probes.base.text import printable
from probes.facts.gpu.gpus import GpuFacts
from probes.host.protocol import Host
from probes.snapshot.examination import Examination, examine
from probes.snapshot.rates import Reading
from tui.actions.guards import node_name
from tui.bandwidth.events import BandwidthEvent, SaveFailed, SeriesEnded, SeriesStarted, TestEnded
from tui.bandwidth.impact_check import read_twice
from tui.bandwidth.processes import ProcessStarter
from tui.bandwidth.results_store import open_results_store
from tui.bandwidth.series_abort import with_not_started
from tui.bandwidth.session import BenchSession, ResultsStore
from tui.commands.bench.exit_status import (
    EXIT_NOT_MEASURED,
    EXIT_NOT_WRITTEN,
    EXIT_STOPPED,
    EXIT_WRONG_USAGE,
    ended,
)
from tui.commands.bench.json_report import plan_json, results_json
from tui.commands.bench.lists import list_results, list_tools
from tui.commands.bench.options import BenchOptions
from tui.commands.bench.output import BenchOutput
from tui.commands.bench.progress import BenchProgress
from tui.commands.bench.save import BenchSaver
from tui.files.new_file import NotWritten, check_new
from tui.runtime.printing import heading
from tui.runtime.signals import signals_stop
from widgets.bandwidth.series import draw_affected, draw_left_out, draw_not_started, draw_series
from widgets.base.figures import minutes
from widgets.base.lines import Line, Tone, sentence, wrapped

_CANNOT_WRITE = "the output cannot be written"


def command(
    host: Host,
    out: TextIO,
    wanted: BenchOptions,
    *,
    ascii_only: bool = False,
    read_only: bool = False,
    answers: TextIO | None = None,
    store: ResultsStore | None = None,
    processes: ProcessStarter | None = None,
    pause: Callable[[float], object] = time.sleep,
) -> int:
    """`gdrtop bench`; gives the exit status."""
    store = open_results_store(host.origin) if store is None else store
    if wanted.list_results:
        return list_results(store, host, wanted.as_json, out, ascii_only)
    if wanted.list_tools:
        return list_tools(host, wanted.as_json, out, ascii_only)
    if wanted.text_file is not None:
        try:
            check_new(wanted.text_file)
        except NotWritten as error:
            print(f"gdrtop: {error}", file=sys.stderr)
            return EXIT_NOT_WRITTEN
    output = BenchOutput(out, wanted.as_json, ascii_only)
    measurer = BenchSession(host, store, read_only, processes, pause)
    bench = BenchCommand(host, output, wanted, measurer, answers, pause)
    status = bench.go()
    # A reader that has left is no fault; a text that is cut off is one.
    is_cut_off = output.lost is not None and not isinstance(output.lost, BrokenPipeError)
    return status or (EXIT_NOT_WRITTEN if is_cut_off else 0)


class BenchCommand:
    """One use of `gdrtop bench` that measures, or shows what it would."""

    def __init__(
        self,
        host: Host,
        output: BenchOutput,
        wanted: BenchOptions,
        bench: BenchSession,
        answers: TextIO | None,
        pause: Callable[[float], object],
    ) -> None:
        self._host, self._output, self._wanted, self._bench = host, output, wanted, bench
        self._answers, self._pause = answers, pause
        self._width = output.width
        self._is_live = host.origin.source is Source.LIVE
        self._examination, self._before = self._look()
        self._node = node_name(self._examination)
        self._interrupted = ""
        self._broken_off = ""  # who has come since the series began
        self._series: Series | None = None
        self._not_saved: list[str] = []
        self._comparisons: dict[int, tuple[str, ...]] = {}
        self._earlier: tuple[Result, ...] = ()  # as they were before this run
        self._baseline: tuple[Result, ...] = ()

    def _look(self) -> tuple[Examination, Reading | None]:
        """The node, and a reading some time before, where traffic can be somebody's."""
        if not self._is_live or self._bench.refusal:
            return examine(self._host), None
        return read_twice(self._host, self._pause)

    # From the wish to the end

    def go(self) -> int:
        """All of it; gives the exit status."""
        self._output.say([heading(self._examination.node)])
        series = self._planned()
        if isinstance(series, Refused):
            status = EXIT_WRONG_USAGE if isinstance(series, _NoSuchGpu) else EXIT_NOT_MEASURED
            return self._refuse(series.reason, status=status)
        self._series = series
        felt = self._bench.affected_by(self._examination, series, self._before)
        if self._wanted.dry_run:
            return self._show(series, felt)
        if self._bench.refusal:
            return self._refuse(self._bench.refusal)
        self._output.say(self._before_running(series, felt))
        if felt and not self._may_disturb(felt):
            return self._refuse(
                "running jobs would be affected; nothing was run (use --yes to override)", felt
            )
        if self._output.lost is not None:
            self._output.warn(f"not measured: {_CANNOT_WRITE}")
            return EXIT_STOPPED
        return self._run(series, felt)

    def _planned(self) -> Series | Refused:
        request = self._wanted.request
        if request.gpu is not None:
            bdf = _bdf_of(self._examination, request.gpu)
            if isinstance(bdf, Refused):
                return bdf
            request = replace(request, gpu=bdf)
        return self._bench.series(self._examination, request)

    def _show(self, series: Series, felt: tuple[str, ...]) -> int:
        """What would be run."""
        if self._wanted.as_json:
            told = plan_json(
                self._examination, self._host.wall_clock(), series, felt, self._bench.refusal, self._node
            )
            self._output.write(told)
            return 0
        self._output.say(draw_series(series, self._width, self._node))
        if felt:
            self._output.say([(), *draw_affected(felt, self._width)])
        if self._bench.refusal:
            self._output.say([(), *wrapped(f"It is not run here: {self._bench.refusal}.", self._width)])
        return 0

    def _before_running(self, series: Series, felt: Sequence[str]) -> list[Line]:
        lines = wrapped(f"{series.title} · about {minutes(series.seconds)}", self._width, Tone.TITLE)
        if self._host.origin.source is Source.SIMULATED:
            lines += wrapped("simulated: the figures are made up, and no job is affected", self._width)
            if self._wanted.request.setup is Mode.SERVER:
                lines += wrapped("no peer connects to a simulated node: end it with Ctrl-C", self._width)
            if felt:
                lines += wrapped(f"on a real node it would ask first: {felt[0]}", self._width, Tone.DIM)
        return [*lines, *draw_left_out(series, self._width)]

    def _may_disturb(self, felt: tuple[str, ...]) -> bool:
        """Whether it may run though somebody feels it: of a simulated node's jobs nobody does."""
        if not self._is_live:
            return True
        told = draw_affected(felt, self._width)
        if self._wanted.as_json:
            self._output.say_beside(told)
        else:
            self._output.say(told)
        return self._wanted.yes or self._output.asks(self._answers, told, "Run it anyway?")

    def _run(self, series: Series, felt: tuple[str, ...]) -> int:
        progress = BenchProgress(series, self._wanted.request, self._node, self._width)
        store = self._bench.store
        self._earlier, self._baseline = store.results(), store.baseline(machine_type(self._examination))
        with signals_stop(self._interrupt):
            results = self._bench.run(
                self._examination,
                series,
                lambda event: self._hear(event, progress),
                may_disturb=bool(felt) or self._wanted.yes,
            )
        if isinstance(results, Refused):
            return self._refuse(results.reason, felt)
        status, reason = ended(
            results, len(series.tests), self._wanted.min_gbps, self._interrupted, self._not_measured(series)
        )
        if self._broken_off:
            status = EXIT_NOT_MEASURED
            reason = _of_broken_off(self._broken_off, results, len(series.tests))
            series = with_not_started(series, len(results), self._broken_off)
        for why in self._not_saved:
            self._output.warn(f"not kept: {why}")
        self._output.say(progress.summary(results))
        if self._broken_off:
            self._output.say(draw_not_started(series.tests[len(results) :], self._width))
        no_baseline = self._no_baseline(results)
        if no_baseline:
            self._output.say([(), *wrapped(sentence(no_baseline), self._width, Tone.WARNING)])
        keeping = BenchSaver(self._output, self._wanted, self._bench.store, self._examination, self._answers)
        status = keeping.keep(results, series.left_out, status)
        if self._wanted.as_json:
            at = self._host.wall_clock()
            content = results_json(self._examination, at, series, felt, results, self._comparisons)
            content["no_baseline"] = no_baseline
            self._output.write({**content, "exit": {"status": status, "reason": reason}})
        else:
            self._output.say([(), *wrapped(reason, self._width, Tone.TITLE)])
        if self._output.lost is not None:
            self._output.warn(reason)
        return status

    def _no_baseline(self, results: Sequence[Result]) -> str:
        """Why these are compared with no baseline, where one might be expected."""
        is_measured = any(one.ending is Ending.DONE for one in results)
        return self._bench.store.no_baseline(machine_type(self._examination)) if is_measured else ""

    def _not_measured(self, series: Series) -> tuple[LeftOut, ...]:
        """What was asked for and could not be planned, and was to be expected."""
        return tuple(one for one in series.left_out if one.is_missed)

    def _refuse(self, reason: str, felt: tuple[str, ...] = (), status: int = EXIT_NOT_MEASURED) -> int:
        if self._wanted.as_json:
            content = results_json(self._examination, self._host.wall_clock(), self._series, felt, (), {})
            told = {"no_baseline": "", "exit": {"status": status, "reason": reason}}
            self._output.write({**content, **told})
        else:
            self._output.warn(f"not measured: {reason}")
        return status

    # While it runs

    def _interrupt(self, why: str) -> None:
        self._interrupted = self._interrupted or why
        self._bench.stop()

    def _hear(self, event: BandwidthEvent, progress: BenchProgress) -> None:
        if isinstance(event, SeriesStarted) and self._interrupted:  # before there was anything to stop
            self._bench.stop()
        if isinstance(event, SaveFailed):
            self._not_saved.append(event.why)
        if isinstance(event, SeriesEnded):
            self._broken_off = event.aborted
        compared: tuple[str, ...] = ()
        if isinstance(event, TestEnded):
            compared = changes(event.result, self._earlier, self._baseline)
            self._comparisons[event.number] = compared
        if self._wanted.as_json:
            self._output.say_beside(progress.beside(event, sys.stderr.isatty()))
            return
        self._output.say(progress.lines(event, compared))
        if self._output.lost is not None and not isinstance(event, SeriesEnded):
            self._interrupt(_CANNOT_WRITE)  # the ends are ended, and what was measured is kept


def _of_broken_off(why: str, results: Sequence[Result], planned: int) -> str:
    done = sum(one.ending is Ending.DONE for one in results)
    counted = f"{done} of {planned} tests were completed, {planned - len(results)} were not started"
    return f"{why}; {counted} (use --yes to override)"


class _NoSuchGpu(Refused):
    """A GPU was named that this node does not have."""


def _bdf_of(examination: Examination, typed: str) -> str | Refused:
    """The PCI address of a GPU named by its number or address, with or without the domain."""
    facts = examination.node.gpus
    if not isinstance(facts, GpuFacts):
        return Refused(f"the GPUs are unknown: {facts}")
    name = typed.lower()
    for gpu in facts.gpus:
        if name in (str(gpu.index), f"gpu{gpu.index}", gpu.bdf, gpu.bdf.removeprefix("0000:")):
            return gpu.bdf
    there = ", ".join(f"{gpu.index} ({gpu.bdf})" for gpu in facts.gpus) or "none"
    return _NoSuchGpu(f"there is no GPU {printable(typed, 40)!r}; there are: {there}")
