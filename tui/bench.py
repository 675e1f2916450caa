"""`gdrtop bench`: bandwidth tests without a screen; planned, run and kept as in the dashboard."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TextIO

from probes.bandwidth.choice import Scope, Setup
from probes.bandwidth.commands import Refused, is_host
from probes.bandwidth.comparison import changes, meaning
from probes.bandwidth.machine_type import machine_type
from probes.bandwidth.planned import PlannedTest, Series
from probes.bandwidth.result import Result
from probes.bandwidth.samples import CONNECTED, WAITING, About, Sample
from probes.examination import Examination, examine
from probes.gpus import GpuFacts
from probes.host import Host
from probes.node import probe_node
from probes.origin import Source
from probes.rates import Reading, read
from probes.text import printable
from tui.actions.guards import node_name
from tui.bandwidth.bench import Bench, KeptResults, NotKept
from tui.bandwidth.events import (
    Event,
    Measured,
    NotSaved,
    SeriesBegan,
    SeriesEnded,
    TestBegan,
    TestEnded,
    Told,
)
from tui.bandwidth.processes import Processes
from tui.bandwidth.results_file import kept_results
from tui.bandwidth.ticket import ticket_text, versions_of
from tui.bench_exit import EXIT_NOT_MEASURED, EXIT_NOT_WRITTEN, ended
from tui.bench_json import head_json, plan_json, results_json
from tui.bench_lists import list_results, list_tools
from tui.bench_options import Wanted
from tui.json_values import write_json
from tui.own_file import NotWritten, write_new
from tui.printing import heading, print_lines, text_width
from tui.stop_signals import signals_stop
from widgets.figures import minutes
from widgets.lines import Line, Run, Tone, line, wrapped
from widgets.result_drawing import draw_result
from widgets.result_matrix import draw_matrix
from widgets.result_table import RowTable
from widgets.series_drawing import (
    draw_commands,
    draw_felt,
    draw_left_out,
    draw_series,
    peer_command,
)

_WATCH_SECONDS = 1.0  # between two readings of the ports: what flows through them


def command(
    host: Host,
    out: TextIO,
    wanted: Wanted,
    *,
    ascii_only: bool = False,
    read_only: bool = False,
    answers: TextIO | None = None,
    kept: KeptResults | None = None,
    processes: Processes | None = None,
    pause: Callable[[float], object] = time.sleep,
) -> int:
    """`gdrtop bench`; gives the exit status."""
    kept = kept_results(host.origin) if kept is None else kept
    if wanted.list_results:
        return list_results(kept, host.origin, wanted.as_json, out, ascii_only)
    if wanted.list_tools:
        return list_tools(examine(host), wanted.as_json, out, ascii_only)
    if wanted.text_file is not None and os.path.lexists(wanted.text_file):
        told = f"{printable(wanted.text_file)} is there already and is not overwritten: choose another name"
        print(f"gdrtop: {told}", file=sys.stderr)
        return EXIT_NOT_WRITTEN
    return BenchCommand(host, out, wanted, Bench(host, kept, read_only, processes), ascii_only, pause).go(
        answers
    )


class BenchCommand:
    """One use of `gdrtop bench` that measures, or shows what it would."""

    def __init__(
        self,
        host: Host,
        out: TextIO,
        wanted: Wanted,
        bench: Bench,
        ascii_only: bool,
        pause: Callable[[float], object],
    ) -> None:
        self._host, self._out, self._wanted, self._bench = host, out, wanted, bench
        self._ascii, self._pause = ascii_only, pause
        self._width = text_width(out)
        self._is_live = host.origin.source is Source.LIVE
        self._examination, self._before = self._look()
        self._node = node_name(self._examination)
        self._interrupted = ""
        self._series: Series | None = None
        self._table: RowTable | None = None
        self._not_saved: list[str] = []
        self._comparisons: dict[int, tuple[str, ...]] = {}

    def _look(self) -> tuple[Examination, Reading | None]:
        """The node, and a reading some time before, where traffic can be somebody's."""
        if not self._is_live or self._bench.refusal:
            return examine(self._host), None
        before = read(self._host, probe_node(self._host))
        self._pause(_WATCH_SECONDS)
        return examine(self._host), before

    # From the wish to the end

    def go(self, answers: TextIO | None) -> int:
        """All of it; gives the exit status."""
        self._say([heading(self._examination.node)])
        series = self._planned()
        if isinstance(series, Refused):
            return self._refuse(series.reason)
        self._series = series
        felt = self._bench.felt_by(self._examination, series, self._before)
        if self._wanted.dry_run:
            return self._show(series, felt)
        if self._bench.refusal:
            return self._refuse(self._bench.refusal)
        self._say(self._before_running(series, felt))
        if felt and not self._may_disturb(felt, answers):
            return self._refuse("somebody would feel it: nothing was run; --yes runs it all the same", felt)
        return self._run(series, felt)

    def _planned(self) -> Series | Refused:
        choice = self._wanted.choice
        if choice.gpu is not None:
            bdf = _bdf_of(self._examination, choice.gpu)
            if isinstance(bdf, Refused):
                return bdf
            choice = replace(choice, gpu=bdf)
        return self._bench.series(self._examination, choice)

    def _show(self, series: Series, felt: tuple[str, ...]) -> int:
        """What would be run."""
        if self._wanted.as_json:
            name = _peers_name_of(self._node)
            write_json(plan_json(self._examination, series, felt, self._bench.refusal, name), self._out)
            return 0
        self._say(draw_series(series, self._width, _peers_name_of(self._node)))
        if felt:
            self._say([(), *draw_felt(felt, self._width)])
        if self._bench.refusal:
            self._say([(), *wrapped(f"It is not run here: {self._bench.refusal}.", self._width)])
        return 0

    def _before_running(self, series: Series, felt: Sequence[str]) -> list[Line]:
        lines = wrapped(f"{series.title} · about {minutes(series.seconds)}", self._width, Tone.TITLE)
        if self._host.origin.source is Source.SIMULATED:
            lines += wrapped("simulated: the figures are made up, and nobody is disturbed", self._width)
            if self._wanted.choice.setup is Setup.SERVER:
                lines += wrapped("no peer comes to a simulated node: Ctrl-C ends it", self._width)
            if felt:
                lines += wrapped(f"on a real node it would ask first: {felt[0]}", self._width, Tone.DIM)
        return [*lines, *draw_left_out(series, self._width)]

    def _may_disturb(self, felt: tuple[str, ...], answers: TextIO | None) -> bool:
        """Whether it may run though somebody feels it: of a simulated node's jobs nobody does."""
        if not self._is_live:
            return True
        told = draw_felt(felt, self._width)
        if self._wanted.as_json:
            print_lines(told, sys.stderr, self._ascii)
        else:
            self._say(told)
        if self._wanted.yes:
            return True
        if answers is None or not answers.isatty() or self._wanted.as_json:
            return False
        self._out.write("Run it all the same? [y/N] ")
        self._out.flush()
        return answers.readline(4096).strip().lower() in ("y", "yes")

    def _run(self, series: Series, felt: tuple[str, ...]) -> int:
        with signals_stop(self._interrupt):
            results = self._bench.run(self._examination, series, self._hear)
        if isinstance(results, Refused):
            return self._refuse(results.reason, felt)
        status, reason = ended(results, self._count(), self._wanted.min_gbps, self._interrupted)
        for sentence in self._not_saved:
            print(f"gdrtop: not kept: {sentence}", file=sys.stderr)
        status = self._keep(results, status)
        if self._wanted.as_json:
            content = results_json(self._examination, series, felt, results, self._comparisons)
            write_json({**content, "exit": {"status": status, "reason": reason}}, self._out)
        else:
            self._say(self._summary(series, results))
            self._say([(), *wrapped(reason, self._width, Tone.TITLE)])
        return status

    def _count(self) -> int:
        return 0 if self._series is None else len(self._series.tests)

    def _keep(self, results: tuple[Result, ...], status: int) -> int:
        """Baseline and ticket, where they are wished; the exit status where a file cannot be written."""
        try:
            if self._wanted.save_baseline:
                place = self._bench.kept.save_baseline(results)
                self._note(f"baseline of {machine_type(self._examination)}: {place}")
        except NotKept as error:
            print(f"gdrtop: no baseline: {error}", file=sys.stderr)
            status = status or EXIT_NOT_WRITTEN
        if self._wanted.text_file is None:
            return status
        text = ticket_text(
            results,
            self._node,
            versions_of(self._examination),
            self._bench.kept.results(),
            self._bench.kept.baseline(machine_type(self._examination)),
            self._series.left_out if self._series else (),
        )
        try:
            self._note(f"written: {write_new(self._wanted.text_file, text)}")
        except NotWritten as error:
            print(f"gdrtop: {error}", file=sys.stderr)
            return status or EXIT_NOT_WRITTEN
        return status

    def _refuse(self, reason: str, felt: tuple[str, ...] = ()) -> int:
        if self._wanted.as_json:
            content = head_json(self._examination, self._series, felt)
            told = {"results": [], "exit": {"status": EXIT_NOT_MEASURED, "reason": reason}}
            write_json({**content, **told}, self._out)
        else:
            print(f"gdrtop: not measured: {printable(reason)}", file=sys.stderr)
        return EXIT_NOT_MEASURED

    # While it runs

    def _interrupt(self, why: str) -> None:
        self._interrupted = self._interrupted or why
        self._bench.stop()

    def _hear(self, event: Event) -> None:
        if isinstance(event, SeriesBegan) and self._interrupted:  # before there was anything to stop
            self._bench.stop()
        if isinstance(event, NotSaved):
            self._not_saved.append(event.why)
        if isinstance(event, TestEnded):
            baseline = self._bench.kept.baseline(event.result.machine)
            compared = changes(event.result, self._bench.kept.results(), baseline)
            self._comparisons[event.number] = compared
        try:
            if self._wanted.as_json:
                self._hear_quietly(event)
            else:
                self._say(self._lines_of(event))
        except OSError:  # the terminal has gone: the ends are ended, and what was measured is kept
            self._interrupt("the output cannot be written")

    def _hear_quietly(self, event: Event) -> None:
        """With --json, progress goes to stderr where somebody sees it; a peer's command always."""
        if isinstance(event, TestBegan):
            test = event.test
            if sys.stderr.isatty() or test.for_peer:
                print_lines([line(self._progress(event)), *self._for_peer(test)], sys.stderr, self._ascii)

    def _lines_of(self, event: Event) -> list[Line]:
        if isinstance(event, TestBegan):
            self._table = None
            told = [(), line(Run(self._progress(event), Tone.TITLE))]
            return [*told, *draw_commands(event.test, self._width, _peers_name_of(self._node))]
        if isinstance(event, Measured):
            return self._row(event.sample)
        if isinstance(event, Told) and event.fact.about is About.PHASE:
            return self._phase(event.fact.value)
        if isinstance(event, TestEnded):
            test = self._series.tests[event.number - 1] if self._series else None
            purpose = test.purpose if test and self._count() == 1 else None
            return draw_result(event.result, self._comparisons[event.number], self._width, purpose)
        if isinstance(event, SeriesEnded) and event.was_cancelled:
            return [(), line(Run(f"{self._interrupted or 'stopped'}: both ends were ended", Tone.WARNING))]
        return []

    def _phase(self, phase: str) -> list[Line]:
        """Only where somebody at a peer is waited for."""
        is_server = self._wanted.choice.setup is Setup.SERVER
        return [line(f"  {phase} …")] if is_server and phase in (WAITING, CONNECTED) else []

    def _progress(self, began: TestBegan) -> str:
        tests = self._series.tests if self._series else (began.test,)
        left = sum(test.seconds for test in tests[began.number - 1 :])
        return f"[{began.number}/{len(tests)}] {began.test.title} · about {minutes(left)} left"

    def _for_peer(self, test: PlannedTest) -> list[Line]:
        told = peer_command(test, _peers_name_of(self._node))
        return [line(f"at the peer: {told}")] if told else []

    def _row(self, sample: Sample) -> list[Line]:
        if self._table is not None:
            return [self._table.row(sample)]
        self._table = RowTable((sample,), self._width, self._wanted.choice.tool.endswith("_lat"))
        return [self._table.heading(), self._table.row(sample)]

    # What it comes to

    def _summary(self, series: Series, results: Sequence[Result]) -> list[Line]:
        lines: list[Line] = []
        if self._wanted.choice.scope is not Scope.PAIR:
            pairs = [test.pair for test in series.tests]
            gpus = dict.fromkeys(pair.gpu_label for pair in pairs if pair.gpu_label)
            nics = dict.fromkeys(pair.nic for pair in pairs)
            lines += [(), *draw_matrix(results, self._width, tuple(gpus), tuple(nics))]
        told = meaning(results, series.left_out)
        if told:
            lines += [(), line(Run("What it means", Tone.TITLE))]
        for sentence in told:
            lines += wrapped(sentence, self._width, indent="  ")
        return lines

    # Saying it

    def _note(self, text: str) -> None:
        """What is no part of the JSON."""
        if self._wanted.as_json:
            print(text, file=sys.stderr)
        else:
            self._say([line(text)])

    def _say(self, lines: Sequence[Line]) -> None:
        if lines and not self._wanted.as_json:
            print_lines(lines, self._out, self._ascii)
            self._out.flush()


def _bdf_of(examination: Examination, typed: str) -> str | Refused:
    """The PCI address of a GPU named by its number or address, with or without the domain."""
    facts = examination.node.gpus
    if not isinstance(facts, GpuFacts):
        return Refused(f"the GPUs are not known: {facts}")
    name = typed.lower()
    for gpu in facts.gpus:
        if name in (str(gpu.index), f"gpu{gpu.index}", gpu.bdf, gpu.bdf.removeprefix("0000:")):
            return gpu.bdf
    there = ", ".join(f"{gpu.index} ({gpu.bdf})" for gpu in facts.gpus) or "none"
    return Refused(f"there is no GPU {printable(typed, 40)!r}; there are: {there}")


def _peers_name_of(node: str) -> str:
    return node if is_host(node) else ""
