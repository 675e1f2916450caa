"""`gdrtop ras`: what NCCL's RAS service says about the ranks of the jobs on this node, only on request."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, Any, TextIO, TypedDict, TypeVar

from probes.base.evidence import Severity
from probes.base.frozen import frozen
from probes.base.origin import Source
from probes.base.unknown import Maybe, Unknown
from probes.host.protocol import Host
from probes.host.ras import DIAGNOSTICS, MONITOR, STATUS, VERBOSE_STATUS
from probes.live.model.sample import LiveSample
from probes.live.ras.findings import RasFinding, Stall
from probes.live.ras.targets import (
    LEAST_INTERVAL_SECONDS,
    LocalProcesses,
    RasDecision,
    RasJob,
    RasTarget,
    RasUse,
    find_targets,
    local_processes,
    no_job,
)
from probes.nccl.ras import DiagnosticLine, Diagnostics, RasEvent, RasReport, parse_event
from tui.command_line.arguments import (
    EXIT_WRONG_USAGE,
    UsageError,
    add_arguments,
    duration,
    require_running_node,
    whole_number,
)
from tui.command_line.options import OutputOptions, parsed
from tui.runtime.json_values import (
    NO_REASONS,
    Changed,
    ExitStatus,
    node_document,
    object_from,
    object_of,
    write_json_line,
)
from tui.runtime.node_monitor import NodeMonitor
from tui.runtime.open_host import open_host
from tui.runtime.printing import heading, print_lines, text_width
from tui.runtime.ras_questions import RasAnswer, RasQuestions, confirmed, read_with_ages, use_of
from widgets.base.lines import Line, line
from widgets.nccl.ras import diagnostics_lines, event_text, report_lines

_MOST_SECONDS = 3600
EXIT_UNKNOWN = EXIT_WRONG_USAGE
T = TypeVar("T")


_EVENT = Annotated[RasEvent, Changed(without=("at",), local_time=str)]


_LINE = Annotated[DiagnosticLine, NO_REASONS]
_DIAGNOSTICS = Annotated[Diagnostics, Changed(lines=tuple[_LINE, ...])]


class _Answer(TypedDict):
    address: str  # where RAS was asked; empty: nowhere
    jobs: tuple[RasJob, ...]  # that share the port; one of them answers
    pids: tuple[int, ...]
    sent: str  # STATUS, VERBOSE STATUS or MONITOR all; empty if nothing was sent
    refusals: tuple[str, ...]
    warnings: tuple[str, ...]
    report: Maybe[RasReport]
    diagnostics: Maybe[_DIAGNOSTICS]
    stalls: tuple[Stall, ...]
    findings: tuple[RasFinding, ...]
    events: tuple[_EVENT, ...]


class RasDocument(TypedDict):
    """`gdrtop ras --json, one line a report or a group of events`."""

    exit_status: ExitStatus
    answers: tuple[_Answer, ...]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_arguments(
        parser,
        {
            "-v --verbose": "have RAS name more ranks (VERBOSE STATUS); also print the sources, as with "
            "other commands",
            "--diagnostics": "have the job run diagnostics inside its processes (DIAGNOSTICS); needs NCCL "
            "2.31",
            "--interval TIME": f"query again after so long, {LEAST_INTERVAL_SECONDS:.0f} to "
            f"{_MOST_SECONDS} s, until Ctrl-C; "
            "needs NCCL 2.29.2",
            "--count N": "stop after N reports (--interval) or after N seconds (--follow)",
            "--follow": "print RAS events until Ctrl-C (MONITOR); needs NCCL 2.29.2",
            "--json": "print JSON, one line per report (gdrtop schema ras)",
            "--yes": "query the job without confirmation",
            "--nccl VERSION": "the job's NCCL version, if gdrtop cannot read it",
        },
        verbose={"default": argparse.SUPPRESS},
        interval={"dest": "watch", "type": duration(round(LEAST_INTERVAL_SECONDS), _MOST_SECONDS)},
        count={"type": whole_number(1, 999_999)},
        follow={"dest": "monitor"},
        nccl={"type": _version},
    )


def _version(text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,3}\.[0-9]{1,3}(?:\.[0-9]{1,3})?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a version such as 2.29.7")
    return text


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Ask the jobs of the node that the options name, and return the exit status."""
    if options.monitor and (options.watch or options.verbose):
        raise UsageError("--follow cannot be combined with --interval or --verbose")
    if options.diagnostics and (options.watch or options.verbose or options.monitor):
        raise UsageError("--diagnostics cannot be combined with --interval, --verbose or --follow")
    if options.count and not options.watch and not options.monitor:
        raise UsageError("--count needs --interval or --follow")
    host = open_host(options)
    require_running_node(host, "ras")
    ras = Ras(host, out, parsed(RasOptions, options))
    return ras.monitor() if options.monitor else ras.ask()


@frozen
class RasOptions(OutputOptions):
    """The options of the command line."""

    verbose: bool = False
    diagnostics: bool = False
    watch: int | None = None
    count: int | None = None
    yes: bool = False
    nccl: str | None = None


def _status_of(answer: RasAnswer) -> int:
    """Return the exit status of one port alone."""
    if not isinstance(answer.diagnostics, Unknown):
        return 1 if answer.diagnostics.to_review else 0 if answer.diagnostics.lines else EXIT_UNKNOWN
    if isinstance(answer.report, Unknown):
        return EXIT_UNKNOWN
    if any(finding.severity is Severity.CRITICAL for finding in answer.found):
        return 2
    return 1 if answer.found else 0 if answer.report.is_complete else EXIT_UNKNOWN


class Ras:
    """Questions to the RAS services of a node; each needs the user's consent and the policy's."""

    def __init__(
        self,
        host: Host,
        out: TextIO,
        options: RasOptions,
        answers: TextIO | None = None,
        errors: TextIO | None = None,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._host, self._out, self._options = host, out, options
        self._answers = sys.stdin if answers is None else answers
        self._errors = sys.stderr if errors is None else errors
        self._wait = wait
        self._monitor = NodeMonitor(host)
        self._is_recorded = host.origin.source is Source.RECORDED
        self._questions = RasQuestions(host)
        self._has_heading = options.json

    # Reports

    def ask(self) -> int:
        """Ask each job once, or with --interval again and again; return the exit status."""
        command = VERBOSE_STATUS if self._options.verbose else STATUS
        command = DIAGNOSTICS if self._options.diagnostics else command
        status = EXIT_UNKNOWN
        for sample in self._samples():
            answers = [self._ask(target, command, sample) for target in self._targets(sample)]
            statuses = {_status_of(answer) for answer in answers}
            status = next((worst for worst in (2, 1, EXIT_UNKNOWN, 0) if worst in statuses), EXIT_UNKNOWN)
            if self._options.json:
                self._print_json(sample, answers, status)
            elif not answers:
                self._print([no_job(self._host.is_root(), processes=sample.processes)])
            if not self._questions.has_asked and not self._is_recorded:  # the policy or the user refuses
                break
        return status

    def _samples(self) -> Iterator[LiveSample]:
        """Yield a sample for each round of questions."""
        options = self._options
        if self._is_recorded:
            yield from self._recorded_samples(options.watch)
            return
        rounds = 0
        while True:
            yield self._sample()
            rounds += 1
            if not options.watch or rounds == options.count:
                return
            self._wait(float(options.watch))

    def _sample(self) -> LiveSample:
        return read_with_ages(self._host, self._monitor.read, self._wait, self._options.nccl or "")

    def _recorded_samples(self, interval: float | None) -> Iterator[LiveSample]:
        """Yield the last moment, or with an interval moments that far apart."""
        from probes.recording.replay_host import ReplayHost

        assert isinstance(self._host, ReplayHost)
        moments = self._host.recording.moments
        chosen: list[int] = []
        for number, moment in enumerate(moments):
            if interval is not None and (not chosen or moment.at - moments[chosen[-1]].at >= interval):
                chosen.append(number)
        for number in chosen or [len(moments) - 1]:
            self._host.seek(number)
            yield self._monitor.read()

    def _targets(self, sample: LiveSample) -> tuple[RasTarget, ...]:
        if not self._has_heading:
            assert self._monitor.node is not None
            print_lines([heading(self._monitor.node)], self._out, self._options.ascii)
            self._has_heading = True
        return find_targets(self._host, sample, self._options.nccl or "")

    def _ask(self, target: RasTarget, command: str, sample: LiveSample) -> RasAnswer:
        self._title(target)
        use = RasUse.REPEATED if self._options.watch else use_of(command)
        decision = self._permission(target, command, use)
        if not decision.is_allowed:
            return RasAnswer(target, command, decision=decision)
        answer = self._questions.ask(target, command, use, sample)
        if not answer.decision.is_allowed:  # another gdrtop was faster
            self._print([f"not queried: {why}" for why in answer.decision.refusals])
            return answer
        width = text_width(self._out)
        if command == DIAGNOSTICS:
            self._print_result(answer.diagnostics, lambda found: diagnostics_lines(found, width))
        else:
            found, stalls, jobs = answer.found, answer.stalls, len(target.jobs)
            self._print_result(answer.report, lambda report: report_lines(report, found, stalls, jobs, width))
        return answer

    def _print_result(self, result: Maybe[T], draw: Callable[[T], list[Line]]) -> None:
        if isinstance(result, Unknown):
            self._print([f"no response: {result}"])
        elif not self._options.json:
            print_lines(draw(result), self._out, self._options.ascii)
            self._out.flush()

    def _permission(self, target: RasTarget, command: str, use: RasUse) -> RasDecision:
        """Return whether the policy and the user allow it; print why not."""
        decision = self._questions.decide(target, use)
        decision = confirmed(
            self._questions, target, command, decision, self._answers, self._errors, self._options.yes
        )
        self._print([f"not queried: {why}" for why in decision.refusals])
        return decision

    # Events

    def monitor(self) -> int:
        """Print events until Ctrl-C, or with --count after that many seconds; close every connection."""
        sample = next(self._recorded_samples(None)) if self._is_recorded else self._sample()
        # Only one connection is open at a time.
        target = next(iter(self._targets(sample)), None)
        if target is None:
            self._print([no_job(self._host.is_root(), processes=sample.processes)])
            return EXIT_UNKNOWN
        answer = RasAnswer(target, MONITOR)
        self._title(target)
        answer = replace(answer, decision=self._permission(target, MONITOR, RasUse.EVENTS))
        if not answer.decision.is_allowed:
            if self._options.json:
                self._print_json(sample, [answer], EXIT_UNKNOWN)
            return EXIT_UNKNOWN
        local = local_processes(self._host, sample, target.pids)
        if self._is_recorded:
            for moment in self._recorded_samples(1.0):
                for address in target.addresses:
                    self._print_events(answer, self._host.ras_events(address), local, moment)
            return 0
        address, first = self._questions.subscribe(target)
        if isinstance(first, Unknown):
            self._print([f"no events: {first}"])
            return EXIT_UNKNOWN
        return self._follow(replace(answer, address=address, sent=MONITOR), first, local, sample)

    def _follow(
        self, answer: RasAnswer, events: Maybe[tuple[str, ...]], local: LocalProcesses, sample: LiveSample
    ) -> int:
        seconds = 0
        try:
            while True:
                self._print_events(answer, events, local, sample)
                if isinstance(events, Unknown):
                    self._print([f"ended: {events}"])
                    return 0
                if seconds == self._options.count:
                    return 0
                self._wait(1.0)
                seconds += 1
                events = self._host.ras_events(answer.address)
        finally:
            self._host.ras_events(answer.address, last=True)
            self._questions.end_events()

    def _print_events(
        self, answer: RasAnswer, lines: Maybe[tuple[str, ...]], local: LocalProcesses, sample: LiveSample
    ) -> None:
        if isinstance(lines, Unknown) or not lines:
            return
        events = [(text, parse_event(text)) for text in lines]
        if self._options.json:
            known = tuple(event for _, event in events if event is not None)
            self._print_json(sample, [replace(answer, events=known)], 0)
            return
        self._print([text if event is None else event_text(event, local) for text, event in events])

    # Output

    def _title(self, target: RasTarget) -> None:
        self._print(["", f"{target.name}  {', '.join(job.name for job in target.jobs)}"])

    def _print(self, texts: list[str]) -> None:
        if self._options.json:
            return
        print_lines([line(text) for text in texts], self._out, self._options.ascii)
        self._out.flush()

    def _print_json(self, sample: LiveSample, answers: list[RasAnswer], status: int) -> None:
        node = self._monitor.node
        assert node is not None
        content = object_of({"exit_status": status, "answers": [_answer_json(answer) for answer in answers]})
        write_json_line(node_document("ras", node, sample.taken_at, content), self._out)


def _answer_json(answer: RasAnswer) -> dict[str, Any]:
    return object_from(
        answer,
        _Answer,
        answer.target,
        answer.decision,
        findings=answer.found,
        events=[object_from(event, _EVENT, local_time=event.at) for event in answer.events],
    )
