"""`gdrtop bench --bisect FILE`: which of a job's NCCL variables costs bandwidth."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypedDict

from probes.bandwidth.model.command import Refused
from probes.bandwidth.model.planned_series import PlannedTest, Series
from probes.bandwidth.model.result import Result
from probes.bandwidth.planning.bisection import Outcome, run_counts
from probes.bandwidth.planning.series import with_variables
from probes.bandwidth.results.against_earlier import machine_type
from probes.bandwidth.tools.nccl_tests import NIC_VARIABLES
from probes.base.origin import origin_word
from probes.base.text import plural
from probes.base.unknown import known
from probes.facts.node import host_name
from probes.facts.system import platform as cloud_facts
from probes.host.protocol import Host
from probes.setup.env.differences import Difference, Differences, NotCompared, differences
from probes.setup.env.file_kind import File
from probes.setup.env.recommend import recommend
from tui.bandwidth.bisection_runs import BisectionRun, BisectionRuns, gbps_of
from tui.bandwidth.results_store import StoreError
from tui.bandwidth.session import BenchSession
from tui.commands.bench.exit_status import EXIT_BELOW, EXIT_NOT_MEASURED
from tui.commands.bench.options import BenchOptions
from tui.commands.bench.output import BenchOutput
from tui.commands.bench.run import CANNOT_WRITE, BenchCommand
from tui.launch import EXIT_INTERRUPTED
from tui.runtime.json_values import Changed, Time, node_document, object_from, object_of, time_json
from tui.runtime.signals import signals_stop
from widgets.bandwidth.bisection import (
    draw_differences,
    draw_outcome,
    draw_runs,
    gbps_or_failed,
    trial_words,
    verdict,
)
from widgets.bandwidth.series import draw_affected, draw_commands
from widgets.base.figures import local_time
from widgets.base.lines import Line, Tone, line, wrapped

if TYPE_CHECKING:
    from typing_extensions import NotRequired


class _RunCounts(TypedDict):
    if_none_matters: int
    least: int
    most: int


class _RunCommands(TypedDict):
    recommended: NotRequired[tuple[str, ...]]
    job: NotRequired[tuple[str, ...]]


class _Run(TypedDict):
    time: Time  # when it began (RFC 3339)
    of_job: tuple[str, ...]  # variables with the job's values; all others had the recommended ones
    gbps: float | None  # bus bandwidth; null: the run failed
    failure: str
    is_earlier: bool  # measured by a bisection that was interrupted


_OUTCOME = Annotated[
    Outcome,
    Changed(
        without=("rest", "rest_gbps"),
        differs=bool,
        job_is_slower=bool,
        other_variables=tuple[str, ...],
        other_variables_gbps=float | None,
    ),
]


class BenchBisectDocument(TypedDict):
    """`gdrtop bench --bisect --json, with --dry-run`."""

    machine: str
    file: str  # the job's file, as it was given
    test: str  # what each run measures
    affected: tuple[str, ...]  # processes that the runs would affect
    refused: str  # why no test can run on this host; empty if it can
    differences: tuple[Difference, ...]
    not_compared: tuple[NotCompared, ...]
    expected_runs: _RunCounts
    seconds_per_run: float  # about
    commands: _RunCommands
    runs: tuple[_Run, ...]  # in the order measured
    outcome: _OUTCOME | None  # null: not measured, or not to the end
    exit_status: int
    exit_reason: str  # what decided the exit status, in words


class BisectCommand(BenchCommand):
    """One run of `gdrtop bench --bisect`, or of its --dry-run."""

    def __init__(
        self,
        host: Host,
        output: BenchOutput,
        options: BenchOptions,
        session: BenchSession,
        answers: TextIO | None,
        pause: Callable[[float], object],
        *,
        file: File,
        restart: bool = False,
    ) -> None:
        """`file`: the job's variables; `restart`: measure again what an interrupted run has measured."""
        super().__init__(host, output, options, session, answers, pause)
        self._file, self._restart = file, restart
        self._found = Differences(())
        self._test: PlannedTest | None = None
        self._tests: dict[frozenset[str], PlannedTest] = {}
        self._runs: BisectionRuns | None = None
        self._expected_s = 0.0  # of one run

    # Before the run

    def _plan(self) -> Series | Refused:
        """Return both ends as a series: the recommended values, and the job's."""
        series = super()._plan()
        if isinstance(series, Refused):
            return series
        advice = recommend(self._examination, cloud_facts.probe_cloud(self._host))
        if advice.nothing:
            return Refused(f"nothing to compare with: {advice.nothing}")
        if advice.source_script:
            return Refused(f"nothing to compare with: {advice.source_script} sets the variables of jobs here")
        fixed = NIC_VARIABLES if self._options.request.over_network else ()
        self._found = differences(self._file.text, self._file.kind, advice, fixed)
        if not self._found.differing:
            left = plural(len(self._found.not_compared), "variable")
            more = f" ({left} not compared)" if self._found.not_compared else ""
            return Refused(
                f"no NCCL variable of {self._file.name} differs from what gdrtop env recommends{more}"
            )
        self._test, self._expected_s = series.tests[0], series.tests[0].seconds
        ends = []
        for of_job in (frozenset[str](), frozenset(self._names)):
            test = with_variables(self._examination, self._test, self._variables(of_job))
            if isinstance(test, Refused):
                return test
            ends.append(test)
        count = plural(len(self._names), "NCCL variable")
        return Series(f"Bisect {self._file.name}: {count}", tuple(ends), series.left_out)

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self._found.differing)

    def _variables(self, of_job: frozenset[str]) -> dict[str, str]:
        values = {
            each.name: each.job if each.name in of_job else each.recommended for each in self._found.differing
        }
        return {name: value for name, value in values.items() if value is not None}

    def _test_of(self, of_job: frozenset[str]) -> PlannedTest:
        if of_job not in self._tests:
            assert self._test is not None
            test = with_variables(self._examination, self._test, self._variables(of_job))
            assert isinstance(test, PlannedTest)  # as both ends are
            self._tests[of_job] = test
        return self._tests[of_job]

    def _show_plan(self, series: Series) -> None:
        if self._options.json:
            self._write_results((), "", 0, "dry run")
            return
        self._output.show(self._introduction(series, ()))
        for title, test in zip(
            ("with the recommended values", "with the job's values"), series.tests, strict=True
        ):
            self._output.show([(), line(title), *draw_commands(test)])
        if self._affected:
            self._output.show([(), *draw_affected(self._affected, self._width)])
        if self._session.refusal:
            self._output.show([(), *wrapped(f"This cannot run here: {self._session.refusal}.", self._width)])

    def _introduction(self, series: Series, affected: Sequence[str]) -> list[Line]:
        lines = wrapped(f"{series.title} · {self._test_title()}", self._width, Tone.TITLE)
        lines += [*self._simulated(affected), *draw_differences(self._found, self._width)]
        return [*lines, (), *draw_runs(run_counts(self._names), self._expected_s, self._width)]

    def _test_title(self) -> str:
        return self._test.title if self._test is not None else ""

    # The run

    def _measure(self, series: Series) -> int:
        self._runs = BisectionRuns(self._names, self._test_of, self._on_run)
        if self._restart:
            self._end_bisection()
        else:
            self._take_over(self._runs)
        with signals_stop(self._interrupt):
            results = self._session.run(
                self._examination,
                series,
                self._note,
                may_disturb=bool(self._affected) or self._options.yes,
                choose=self._runs.next_test,
            )
        if isinstance(results, Refused):
            return self._refuse(results.reason)
        if self._runs.outcome is not None:
            self._end_bisection()
        status, reason = self._status(self._runs.outcome)
        for why in dict.fromkeys(self._not_saved):
            self._output.warn(f"not saved: {why}")
        outcome = self._runs.outcome
        if outcome is not None:
            self._output.show([(), *draw_outcome(outcome, self._found.differing, self._width)])
        if self._options.json:
            self._write_results(results, "", status, reason)
        elif outcome is None:
            self._output.show([(), *wrapped(reason, self._width, Tone.TITLE)])
        if self._output.lost is not None:
            self._output.warn(reason)
        return status

    def _take_over(self, runs: BisectionRuns) -> None:
        node = known(host_name(self._examination.node), "")
        place = (node, machine_type(self._examination), origin_word(self._host.origin))
        now = self._host.wall_clock()
        booted_at = now - self._host.monotonic()
        spared = runs.take_over(self._session.store.unfinished_runs(), place, now, booted_at)
        if spared:
            text = f"{plural(spared, 'run')} of an interrupted bisection count (--restart measures all again)"
            self._output.note(text)

    def _status(self, outcome: Outcome | None) -> tuple[int, str]:
        if outcome is None:
            done = plural(len(self._runs.runs) if self._runs else 0, "run")
            again = "start it again to go on"
            if self._interrupted:
                return EXIT_INTERRUPTED, f"{self._interrupted}: {done} measured; {again}"
            return EXIT_NOT_MEASURED, f"{self._aborted}; {done} measured; {again} (use --yes to override)"
        reason = verdict(outcome, self._found.differing).removesuffix(".")
        if outcome.trouble:
            return EXIT_NOT_MEASURED, reason
        return EXIT_BELOW if outcome.causes and outcome.job_is_slower else 0, reason

    def _on_run(self, run: BisectionRun) -> None:
        if not run.is_earlier:
            try:
                self._session.store.add_run(run.result)
            except StoreError as error:
                self._not_saved.append(str(error))
        self._show_run(run)

    def _end_bisection(self) -> None:
        try:
            self._session.store.end_bisection()
        except StoreError as error:
            self._not_saved.append(str(error))

    def _show_run(self, run: BisectionRun) -> None:
        number = len(self._runs.runs) if self._runs else 0
        what = trial_words(run.trial, self._found.differing)
        figure = gbps_or_failed(gbps_of(run.result))
        why = f": {run.result.what_failed}" if run.result.failure else ""
        when = f" (measured at {local_time(run.result.taken_at)})" if run.is_earlier else ""
        if not self._options.json:
            self._output.show(wrapped(f"{number}. {what}: {figure}{why}{when}", self._width, hanging="   "))
        elif sys.stderr.isatty():
            self._output.show_on_stderr([line(f"{number}. {what}: {figure}{why}{when}")])
        if self._output.lost is not None:
            self._interrupt(CANNOT_WRITE)

    # JSON

    def _write_results(self, results: Sequence[Result], no_baseline: str, status: int, reason: str) -> None:
        del results, no_baseline
        runs = self._runs.runs if self._runs else []
        outcome = self._runs.outcome if self._runs else None
        counts = run_counts(self._names) if self._names else (0, 0, 0)
        content: dict[str, Any] = {
            "machine": machine_type(self._examination),
            "file": self._file.name,
            "test": self._test_title(),
            "affected": list(self._affected),
            "refused": self._session.refusal,
            **object_of({"differences": self._found.differing, "not_compared": self._found.not_compared}),
            "expected_runs": dict(zip(("if_none_matters", "least", "most"), counts, strict=True)),
            "seconds_per_run": self._expected_s,
            "commands": {
                whose: list(test.processes[0].command.argv)
                for whose, test in zip(
                    ("recommended", "job"), self._series.tests if self._series else (), strict=False
                )
            },
            "runs": [_run_json(run) for run in runs],
            "outcome": outcome
            and object_from(
                outcome, _OUTCOME, other_variables=outcome.rest, other_variables_gbps=outcome.rest_gbps
            ),
            "exit_status": status,
            "exit_reason": reason,
        }
        node, at = self._examination.node, self._host.wall_clock()
        self._output.write_json(node_document("bench-bisect", node, at, content))


def _run_json(run: BisectionRun) -> dict[str, Any]:
    result = run.result
    of_job = sorted(run.trial.of_job)
    return object_from(
        run, _Run, result, time=time_json(result.taken_at), of_job=of_job, gbps=gbps_of(result)
    )
