"""`gdrtop bench`: bandwidth tests without a screen, planned, run and saved as in the dashboard."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TextIO

from probes.bandwidth.model.command import Refused
from probes.bandwidth.model.expected import TableError
from probes.bandwidth.model.planned_series import LeftOut, PlannedTest, Series
from probes.bandwidth.model.request import Mode
from probes.bandwidth.model.result import Ending, Result
from probes.bandwidth.planning.node_settings import NoSuchDevice, bdf_of
from probes.bandwidth.results.against_earlier import below_limit, changes, machine_type
from probes.bandwidth.results.comparison import conclusions
from probes.base.origin import Source
from probes.host.protocol import Host
from probes.snapshot.examination import Examination, examine
from probes.snapshot.rates import Reading
from tui.actions.guards import node_name
from tui.bandwidth.events import BandwidthEvent, SaveFailed, SeriesEnded, SeriesStarted, TestEnded
from tui.bandwidth.impact_check import read_twice, with_not_started
from tui.bandwidth.processes import ProcessStarter
from tui.bandwidth.results_store import ResultsStore, StoreError, open_results_store
from tui.bandwidth.session import BenchSession, expected_rows
from tui.bandwidth.ticket import ticket_text, versions_of
from tui.command_line.arguments import EXIT_WRONG_USAGE
from tui.commands.bench.exit_status import EXIT_NOT_MEASURED, EXIT_NOT_WRITTEN, below_threshold, exit_status
from tui.commands.bench.lists import LeftOutObject, PlannedTestObject, list_results, list_tools, result_json
from tui.commands.bench.options import BenchOptions
from tui.commands.bench.output import BenchOutput, BenchProgress
from tui.files import NotWritten
from tui.files.new_file import check_new, write_new
from tui.launch import EXIT_INTERRUPTED
from tui.runtime.json_values import node_document, object_from, plain_value
from tui.runtime.printing import heading
from tui.runtime.signals import signals_stop
from widgets.bandwidth.result import words_of
from widgets.bandwidth.series import draw_affected, draw_left_out, draw_not_started, draw_series, peer_command
from widgets.base.figures import minutes
from widgets.base.lines import Line, Tone, sentence, wrapped

_CANNOT_WRITE = "the output cannot be written"


def command(
    host: Host,
    out: TextIO,
    options: BenchOptions,
    *,
    read_only: bool = False,
    answers: TextIO | None = None,
    store: ResultsStore | None = None,
    starter: ProcessStarter | None = None,
    pause: Callable[[float], object] = time.sleep,
) -> int:
    """Run `gdrtop bench`; return the exit status."""
    store = open_results_store(host.origin) if store is None else store
    if options.results:
        return list_results(store, host, out, options)
    if options.list:
        return list_tools(host, out, options)
    if options.text is not None:
        check_new(options.text)
    output = BenchOutput(out, options)
    try:
        rows, trouble = expected_rows(host, options.expected)
    except TableError as error:
        output.warn(str(error))
        return EXIT_WRONG_USAGE
    if trouble:
        output.warn(trouble)
    session = BenchSession(host, store, read_only, starter, pause, rows)
    status = BenchCommand(host, output, options, session, answers, pause).run()
    return status or (EXIT_NOT_WRITTEN if output.is_truncated else 0)


class BenchCommand:
    """One run of `gdrtop bench`, or of its --dry-run."""

    def __init__(
        self,
        host: Host,
        output: BenchOutput,
        options: BenchOptions,
        session: BenchSession,
        answers: TextIO | None,
        pause: Callable[[float], object],
    ) -> None:
        self._host, self._output, self._options, self._session = host, output, options, session
        self._answers = answers
        self._width = output.width
        self._is_live = host.origin.source is Source.LIVE
        self._examination: Examination
        self._before: Reading | None = None  # an earlier reading of the ports: traffic may belong to a job
        if self._is_live and not session.refusal:
            self._examination, self._before = read_twice(host, pause)
        else:
            self._examination = examine(host)
        self._node = node_name(self._examination)
        self._series: Series | None = None  # that is planned
        self._affected: tuple[str, ...] = ()  # jobs, a line each, once they count
        self._interrupted = ""
        self._aborted = ""
        self._not_saved: list[str] = []
        self._comparisons: dict[int, tuple[str, ...]] = {}
        self._earlier: tuple[Result, ...] = ()  # saved before this run
        self._baseline: tuple[Result, ...] = ()

    def run(self) -> int:
        """Plan, ask, measure and save; return the exit status."""
        self._output.show([heading(self._examination.node)])
        series = self._plan()
        if isinstance(series, Refused):
            status = EXIT_WRONG_USAGE if isinstance(series, NoSuchDevice) else EXIT_NOT_MEASURED
            return self._refuse(series.reason, status)
        self._series = series
        affected = self._session.affected_by(self._examination, series, self._before)
        if self._session.refusal and not self._options.dry_run:
            return self._refuse(self._session.refusal)
        self._affected = affected
        if self._options.dry_run:
            self._show_plan(series)
            return 0
        self._output.show(self._introduction(series, affected))
        if affected and not self._may_affect(affected):
            return self._refuse("running jobs would be affected; nothing was run (use --yes to override)")
        if self._output.lost is not None:
            self._output.warn(f"not measured: {_CANNOT_WRITE}")
            return EXIT_INTERRUPTED
        return self._measure(series)

    # Before the run

    def _plan(self) -> Series | Refused:
        request = self._options.request
        if request.gpu is not None:
            bdf = bdf_of(self._examination, request.gpu)
            if isinstance(bdf, Refused):
                return bdf
            request = replace(request, gpu=bdf)
        return self._session.plan(self._examination, request)

    def _show_plan(self, series: Series) -> None:
        refusal = self._session.refusal
        if self._options.json:
            tests = [self._planned_json(test) for test in series.tests]
            self._write_json({"seconds": series.seconds, "refused": refusal, "tests": tests})
            return
        self._output.show(draw_series(series, self._width, self._node))
        if self._affected:
            self._output.show([(), *draw_affected(self._affected, self._width)])
        if refusal:
            self._output.show([(), *wrapped(f"This cannot run here: {refusal}.", self._width)])

    def _introduction(self, series: Series, affected: Sequence[str]) -> list[Line]:
        title = wrapped(f"{series.title} · about {minutes(series.seconds)}", self._width, Tone.TITLE)
        return [*title, *self._simulated(affected), *draw_left_out(series, self._width)]

    def _simulated(self, affected: Sequence[str]) -> list[Line]:
        """Return what is different on a simulated node."""
        if self._host.origin.source is not Source.SIMULATED:
            return []
        lines = wrapped("simulated: the results are made up, and no job is affected", self._width)
        if self._options.request.setup is Mode.SERVER:
            lines += wrapped("no peer can connect to a simulated node; press Ctrl-C to stop", self._width)
        text = f"on a real node, gdrtop would ask first: {affected[0]}" if affected else ""
        return [*lines, *(wrapped(text, self._width, Tone.DIM) if text else [])]

    def _may_affect(self, affected: tuple[str, ...]) -> bool:
        """Return whether the tests may affect these jobs; simulated jobs are never affected."""
        if not self._is_live:
            return True
        lines = draw_affected(affected, self._width)
        (self._output.show_on_stderr if self._options.json else self._output.show)(lines)
        return self._options.yes or self._output.ask(self._answers, lines, "Run it anyway?")

    def _planned_json(self, test: PlannedTest) -> dict[str, Any]:
        return object_from(
            test,
            PlannedTestObject,
            test.purpose,
            commands={process.name: process.command.argv for process in test.processes},
            for_peer=peer_command(test, self._node),
            limit_gbps=plain_value(test.limit.gbps),
            expected_gbps=None if test.expected is None else test.expected.gbps,
            expected_machine="" if test.expected is None else test.expected.name,
        )

    def _refuse(self, reason: str, status: int = EXIT_NOT_MEASURED) -> int:
        if self._options.json:
            self._write_results((), "", status, reason)
        else:
            self._output.warn(f"not measured: {reason}")
        return status

    # The run

    def _measure(self, series: Series) -> int:
        progress = BenchProgress(series, self._options.request, self._node, self._width)
        store, machine = self._session.store, machine_type(self._examination)
        self._earlier, self._baseline = store.results(), store.baseline(machine)
        with signals_stop(self._interrupt):
            results = self._session.run(
                self._examination,
                series,
                lambda event: self._handle(event, progress),
                may_disturb=bool(self._affected) or self._options.yes,
            )
        if isinstance(results, Refused):
            return self._refuse(results.reason)
        planned = series.tests
        missed = [test for test in series.left_out if test.is_missed]
        status, reason = exit_status(results, len(planned), self._options.min_gbps, self._interrupted, missed)
        if self._aborted:
            done = sum(result.ending is Ending.DONE for result in results)
            left = f"{done} of {len(planned)} tests completed, {len(planned) - len(results)} not started"
            status, reason = EXIT_NOT_MEASURED, f"{self._aborted}; {left} (use --yes to override)"
            self._series = series = with_not_started(series, len(results), self._aborted)
        for why in self._not_saved:
            self._output.warn(f"not saved: {why}")
        self._output.show(progress.summary(results))
        if self._aborted:
            self._output.show(draw_not_started(planned[len(results) :], self._width))
        is_measured = any(result.ending is Ending.DONE for result in results)
        no_baseline = store.no_baseline(machine) if is_measured else ""
        if no_baseline:
            self._output.show([(), *wrapped(sentence(no_baseline), self._width, Tone.WARNING)])
        status = self._save(results, series.left_out, status)
        if self._options.json:
            self._write_results(results, no_baseline, status, reason)
        else:
            self._output.show([(), *wrapped(reason, self._width, Tone.TITLE)])
        if self._output.lost is not None:
            self._output.warn(reason)
        return status

    def _write_results(self, results: Sequence[Result], no_baseline: str, status: int, reason: str) -> None:
        measured = [
            {**result_json(result), "comparisons": list(self._comparisons.get(number, ()))}
            for number, result in enumerate(results, 1)
        ]
        meaning = list(conclusions(results, self._series.left_out if self._series else ()))
        ended = {"no_baseline": no_baseline, "exit_status": status, "exit_reason": reason}
        self._write_json({"results": measured, "meaning": meaning, **ended})

    def _write_json(self, content: dict[str, Any]) -> None:
        """Print a plan or results, with what both have in common."""
        series = self._series
        common = {
            "machine": machine_type(self._examination),
            "title": series.title if series else "",
            "affected": list(self._affected),
            "left_out": [object_from(test, LeftOutObject) for test in (series.left_out if series else ())],
        }
        node, at = self._examination.node, self._host.wall_clock()
        self._output.write_json(node_document("bench", node, at, {**common, **content}))

    # What is saved on request: the baseline of the machine type, and a text for a ticket

    def _save(self, results: tuple[Result, ...], left_out: Sequence[LeftOut], status: int) -> int:
        """Save what was requested; return the exit status: `status`, or not 0 if saving failed."""
        is_saved = not self._options.save_baseline or self._save_baseline(results)
        if self._options.text is not None:
            is_saved = self._write_ticket(self._options.text, results, left_out) and is_saved
        return status or (0 if is_saved else EXIT_NOT_WRITTEN)

    def _save_baseline(self, results: tuple[Result, ...]) -> bool:
        """Save unless a result is below --min-gbps; ask first if one is below the limit of its path."""
        low = below_threshold(results, self._options.min_gbps)
        if low:
            self._output.warn(f"baseline not saved: {low[0].title}, {words_of(low[0])}, below the threshold")
            return False
        low = list(below_limit(results))
        if low and not self._options.yes and not self._confirm_baseline(low):
            text = f"{low[0].title}, {words_of(low[0])}, is below the limit of its path"
            self._output.warn(f"baseline not saved: {text} (use --yes to override)")
            return False
        try:
            place = self._session.store.save_baseline(results)
        except StoreError as error:
            self._output.warn(f"baseline not saved: {error}")
            return False
        self._output.note(f"baseline of {machine_type(self._examination)}: {place}")
        return True

    def _confirm_baseline(self, low: Sequence[Result]) -> bool:
        if not self._output.can_ask(self._answers):
            return False
        why: list[Line] = []
        for result in low:
            text = f"below the limit of its path: {result.title}, {words_of(result)}"
            why += wrapped(text, self._width, Tone.WARNING)
        self._output.show([(), *why])
        try:
            return self._output.ask(self._answers, why, "Save it as the baseline anyway?")
        except KeyboardInterrupt:  # the results must still be printed
            return False

    def _write_ticket(self, path: str, results: tuple[Result, ...], left_out: Sequence[LeftOut]) -> bool:
        text = ticket_text(
            results,
            node_name(self._examination),
            versions_of(self._examination),
            self._session.store.results(),
            self._session.store.baseline(machine_type(self._examination)),
            left_out,
        )
        try:
            self._output.note(f"written: {write_new(path, text)}")
        except NotWritten as error:
            self._output.warn(str(error))
            return False
        return True

    def _interrupt(self, why: str) -> None:
        self._interrupted = self._interrupted or why
        self._session.stop()

    def _handle(self, event: BandwidthEvent, progress: BenchProgress) -> None:
        if isinstance(event, SeriesStarted) and self._interrupted:  # before there was anything to stop
            self._session.stop()
        elif isinstance(event, SaveFailed):
            self._not_saved.append(event.reason)
        elif isinstance(event, SeriesEnded):
            self._aborted = event.aborted
        comparisons: tuple[str, ...] = ()
        if isinstance(event, TestEnded):
            comparisons = changes(event.result, self._earlier, self._baseline)
            self._comparisons[event.number] = comparisons
        if self._options.json:
            self._output.show_on_stderr(progress.stderr_lines(event, sys.stderr.isatty()))
            return
        self._output.show(progress.lines(event, comparisons))
        if self._output.lost is not None and not isinstance(event, SeriesEnded):
            self._interrupt(_CANNOT_WRITE)  # the test is stopped, and its results are saved
