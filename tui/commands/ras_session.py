"""Questions to the RAS services of a node, for `gdrtop ras`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TextIO

from probes.base.origin import Source
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.protocol import Host
from probes.host.ras import MONITOR, STATUS, VERBOSE_STATUS
from probes.live.ras_findings import RasFinding, findings
from probes.live.ras_policy import RasDecision, RasUse, decide
from probes.live.ras_stall import RasHistory, Stall
from probes.live.ras_targets import LocalProcesses, RasTarget, find_targets, local_processes
from probes.live.sample import LiveSample
from probes.nccl.ras.events import RasEvent, parse_event
from probes.nccl.ras.facts import RasReport
from probes.nccl.ras.report import parse_report
from probes.queries.finding import Severity
from tui.commands.arguments import EXIT_WRONG_USAGE
from tui.commands.json_values import document, host_name, object_of
from tui.commands.ras_text import event_text, notice, report_lines
from tui.runtime.live_reader import LiveReader
from tui.runtime.printing import heading, print_lines, text_width
from widgets.base.lines import line

_SAMPLES = 5  # until start times and libraries of all processes are read
EXIT_UNKNOWN = EXIT_WRONG_USAGE
_NO_JOB = "no NCCL job uses RDMA or a GPU on this node, or it is not visible"
_NOT_ASKED = Unknown(Reason.NOT_RECORDED, "RAS", "not asked")


@dataclass(frozen=True)
class RasOptions:
    """The options of the command line."""

    verbose: bool = False
    watch: int | None = None
    count: int | None = None
    as_json: bool = False
    yes: bool = False
    nccl: str = ""
    ascii_only: bool = False


@dataclass
class _Answer:
    """What became of one question to one port."""

    target: RasTarget
    sent: str = ""  # the command; "": nothing was sent
    address: str = ""
    decision: RasDecision = field(default_factory=RasDecision)
    report: Maybe[RasReport] = _NOT_ASKED
    found: tuple[RasFinding, ...] = ()
    stalls: tuple[Stall, ...] = ()
    events: tuple[RasEvent, ...] = ()

    @property
    def exit_status(self) -> int:
        """Return the status of this port alone."""
        if isinstance(self.report, Unknown):
            return EXIT_UNKNOWN
        if any(one.severity is Severity.CRITICAL for one in self.found):
            return 2
        return 1 if self.found else 0 if self.report.is_complete else EXIT_UNKNOWN


class Ras:
    """Questions to the RAS services of a node; the policy is checked before each one."""

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
        self._reader = LiveReader(host)
        self._is_recorded = host.origin.source is Source.RECORDED
        self._asked_at: dict[str, float] = {}  # by the port's name
        self._histories: dict[str, RasHistory] = {}
        self._confirmed: set[tuple[str, ...]] = set()
        self._has_heading = options.as_json

    # Reports

    def ask(self) -> int:
        """Ask each job once, or with --watch again and again; return the exit status."""
        command = VERBOSE_STATUS if self._options.verbose else STATUS
        status = EXIT_UNKNOWN
        for sample in self._samples():
            answers = [self._ask(target, command, sample) for target in self._targets(sample)]
            status = _worst([one.exit_status for one in answers])
            if self._options.as_json:
                self._print_json(sample, answers, status)
            elif not answers:
                self._print([_NO_JOB])
            if not self._asked_at and not self._is_recorded:  # the policy or the user refuses
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
        """Return a sample in which the ages of the processes are known, if they can be."""
        for _ in range(_SAMPLES):
            sample = self._reader.read()
            targets = find_targets(self._host, sample, self._options.nccl)
            jobs = [job for target in targets for job in target.jobs]
            is_late = any(
                isinstance(what, Unknown) and what.reason is Reason.TIMED_OUT
                for job in jobs
                for what in (job.version, job.youngest_seconds)
            )
            if not is_late:
                break
            self._wait(1.0)
        return sample

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
            yield self._reader.read()

    def _targets(self, sample: LiveSample) -> tuple[RasTarget, ...]:
        if not self._has_heading:
            assert self._reader.node is not None
            print_lines([heading(self._reader.node)], self._out, self._options.ascii_only)
            self._has_heading = True
        return find_targets(self._host, sample, self._options.nccl)

    def _ask(self, target: RasTarget, command: str, sample: LiveSample) -> _Answer:
        answer = _Answer(target)
        self._title(target)
        use = RasUse.REPEATED if self._options.watch else RasUse.ONCE
        if not self._may_send(answer, command, use):
            return answer
        now = self._host.monotonic()
        text: Maybe[str] = Unknown(Reason.NOT_THERE, "RAS", "no address")
        for answer.address in target.addresses:
            text = self._host.ras_answer(answer.address, command)
            if not isinstance(text, Unknown) or text.reason not in (Reason.NOT_THERE, Reason.NOT_RECORDED):
                break
        self._asked_at[target.name] = self._host.monotonic()
        answer.sent = "" if self._is_recorded else command
        if isinstance(text, Unknown):
            answer.report = text
            self._print([f"no answer: {text}"])
            return answer
        report = answer.report = parse_report(text)
        history = self._histories.setdefault(target.name, RasHistory())
        at = sample.taken_at if self._is_recorded else now
        answer.stalls = history.add(report, at, len(target.jobs) == 1)
        local = local_processes(self._host, sample, target.pids)
        answer.found = findings(report, answer.stalls, local)
        if not self._options.as_json:
            width = text_width(self._out)
            lines = report_lines(report, answer.found, answer.stalls, len(target.jobs), width)
            print_lines(lines, self._out, self._options.ascii_only)
            self._out.flush()
        return answer

    def _may_send(self, answer: _Answer, command: str, use: RasUse) -> bool:
        """Return whether the policy and the user allow it; nothing is sent to a recorded job."""
        if self._is_recorded:
            return True
        target = answer.target
        asked = self._asked_at.get(target.name)
        since = None if asked is None else self._host.monotonic() - asked
        decision = decide(target.jobs, use, since)
        if target.problem:
            decision = RasDecision((target.problem,))
        if decision.is_allowed and not self._is_confirmed(target, command, decision):
            decision = RasDecision(("not confirmed; --yes asks without confirmation",))
        answer.decision = decision
        self._print([f"not asked: {why}" for why in decision.refusals])
        return decision.is_allowed

    def _is_confirmed(self, target: RasTarget, command: str, decision: RasDecision) -> bool:
        key = (target.name, command, *decision.warnings)
        if key in self._confirmed:
            return True
        for text in notice(target, command, decision):
            print(text, file=self._errors)
        if not self._options.yes:
            if not (self._answers.isatty() and self._errors.isatty()):
                return False
            print("Ask the job? [y/N] ", end="", file=self._errors, flush=True)
            if self._answers.readline().strip().lower() not in ("y", "yes"):
                return False
        self._confirmed.add(key)
        return True

    # Events

    def monitor(self) -> int:
        """Print events until Ctrl-C, or with --count after that many seconds; close every connection."""
        sample = next(self._recorded_samples(None)) if self._is_recorded else self._sample()
        # Only one connection is open at a time.
        target = next(iter(self._targets(sample)), None)
        if target is None:
            self._print([_NO_JOB])
            return EXIT_UNKNOWN
        answer = _Answer(target)
        self._title(target)
        if not self._may_send(answer, MONITOR, RasUse.EVENTS):
            if self._options.as_json:
                self._print_json(sample, [answer], EXIT_UNKNOWN)
            return EXIT_UNKNOWN
        local = local_processes(self._host, sample, target.pids)
        if self._is_recorded:
            for moment in self._recorded_samples(1.0):
                for address in target.addresses:
                    self._print_events(answer, self._host.ras_events(address), local, moment)
            return 0
        for answer.address in target.addresses:
            first = self._host.ras_events(answer.address)
            if not isinstance(first, Unknown) or first.reason is not Reason.NOT_THERE:
                break
            self._host.ras_events(answer.address, last=True)
        if isinstance(first, Unknown):
            self._print([f"no events: {first}"])
            self._host.ras_events(answer.address, last=True)
            return EXIT_UNKNOWN
        answer.sent = MONITOR
        return self._follow(answer, first, local, sample)

    def _follow(
        self, answer: _Answer, events: Maybe[tuple[str, ...]], local: LocalProcesses, sample: LiveSample
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

    def _print_events(
        self, answer: _Answer, lines: Maybe[tuple[str, ...]], local: LocalProcesses, sample: LiveSample
    ) -> None:
        if isinstance(lines, Unknown) or not lines:
            return
        events = [(text, parse_event(text)) for text in lines]
        if self._options.as_json:
            answer.events = tuple(event for _, event in events if event is not None)
            self._print_json(sample, [answer], 0)
            return
        self._print([text if event is None else event_text(event, local) for text, event in events])

    # Output

    def _title(self, target: RasTarget) -> None:
        self._print(["", f"{target.name}  {', '.join(job.name for job in target.jobs)}"])

    def _print(self, texts: list[str]) -> None:
        if self._options.as_json:
            return
        print_lines([line(text) for text in texts], self._out, self._options.ascii_only)
        self._out.flush()

    def _print_json(self, sample: LiveSample, answers: list[_Answer], status: int) -> None:
        node = self._reader.node
        assert node is not None
        content = object_of(
            {
                "exit_status": status,
                "taken_at": sample.taken_at,
                "answers": [_answer_json(one) for one in answers],
            }
        )
        json.dump(document("ras", host_name(node), node.origin, sample.taken_at, content), self._out)
        self._out.write("\n")
        self._out.flush()


def _answer_json(answer: _Answer) -> dict[str, Any]:
    return object_of(
        {
            "address": answer.address,
            "jobs": answer.target.jobs,
            "pids": answer.target.pids,
            "sent": answer.sent,
            "refusals": answer.decision.refusals,
            "warnings": answer.decision.warnings,
            "report": answer.report,
            "stalls": answer.stalls,
            "findings": answer.found,
            "events": answer.events,
        }
    )


def _worst(statuses: list[int]) -> int:
    """Return 2, 1, 3 or 0, the first of them that occurs; EXIT_UNKNOWN without any."""
    return next((one for one in (2, 1, EXIT_UNKNOWN, 0) if one in statuses), EXIT_UNKNOWN)
