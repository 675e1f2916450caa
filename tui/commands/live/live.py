"""`gdrtop live`: the jobs on the node, their paths and rates, and events as they come."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypedDict

from probes.base.frozen import frozen
from probes.base.origin import Source
from probes.base.text import plural
from probes.base.unknown import Maybe, Unknown, map_known
from probes.checks import judgment
from probes.facts.gpudirect import PeermemReading
from probes.facts.node import Node
from probes.fleet.job import is_wanted
from probes.host.collectives import CollectiveSpeed
from probes.host.protocol import Host
from probes.live.model.sample import (
    GDR_WORDS,
    GpuSample,
    LiveEvent,
    LiveJob,
    LiveProcess,
    LiveSample,
    PathWord,
    PortSample,
    Role,
)
from probes.live.model.transfer import TransferWord
from probes.live.processes.jobs import path_summary
from probes.queries.finding import Finding
from tui.bandwidth.slow_results import note_slow_results
from tui.command_line.arguments import (
    UsageError,
    add_arguments,
    add_job_option,
    duration,
    interval,
    require_running_node,
)
from tui.command_line.options import OutputOptions, parsed
from tui.runtime.json_values import (
    Changed,
    ExitStatus,
    Time,
    VerdictObject,
    node_document,
    object_from,
    plain_value,
    time_json,
    write_json_line,
)
from tui.runtime.node_monitor import NodeMonitor, read_judged, read_up_to
from tui.runtime.open_host import open_host
from tui.runtime.printing import heading, print_lines, text_width
from widgets.base.figures import short
from widgets.base.lines import Line, line, plain, wrapped
from widgets.live.engines import engine_text
from widgets.live.job_lines import rates_text
from widgets.node import verdict as verdict_drawing

if TYPE_CHECKING:
    from typing_extensions import NotRequired


_MOST_SECONDS = 7 * 24 * 3600
_LATE_SECONDS = 2.0  # less is the time between two samples

INDENT = " " * 10


_EVENT = Annotated[LiveEvent, Changed(without=("at",), time=Time, has_reasons=True)]
_COLLECTIVE = Annotated[CollectiveSpeed, Changed(without=("at",), time=Time | None, has_reasons=True)]
_PROCESS = Annotated[
    LiveProcess,
    Changed(
        without=("process",),
        program=Maybe[str],
        user=Maybe[str],
        path_text=str,
        collectives=tuple[_COLLECTIVE, ...],
    ),
]
_FINDING = Annotated[
    Finding,
    Changed(
        only=("id", "severity", "title", "cause", "devices", "ranks", "jobs", "takes"), since=Time | None
    ),
]


class LiveDocument(TypedDict):
    """`gdrtop live --json, one line a second`."""

    # Of this sample: 0 all NCCL jobs use GPUDirect RDMA, 1 some ranks do not or one differs, 2 none,
    # 3 unknown or no NCCL job.
    exit_status: ExitStatus
    verdict: VerdictObject | None  # on the node at this moment, as in gdrtop check
    findings: tuple[_FINDING, ...]  # critical findings and warnings, one for each cause
    jobs: tuple[LiveJob, ...]
    processes: Maybe[tuple[_PROCESS, ...]]
    ports: tuple[PortSample, ...]  # rates in Gb/s, counters as events a second since the sample before
    gpus: tuple[GpuSample, ...]
    peermem: PeermemReading
    modules: Mapping[str, str]
    limits: tuple[str, ...]  # what cannot be seen, and why
    # Storage and other clients in the kernel with connected queue pairs, by RDMA device.
    kernel_clients: NotRequired[Mapping[str, tuple[str, ...]]]
    events: tuple[_EVENT, ...]  # new in this sample


def add_options(parser: argparse.ArgumentParser) -> None:
    add_arguments(
        parser,
        {
            "--json": "print one JSON object per second, one per line (gdrtop schema live)",
            "--changes --changes-only": "with --json, print an object only when the verdict, a finding or "
            "a job changes, or at an event",
            "--seconds TIME": f"end after this time, 1 to {_MOST_SECONDS} (default: until Ctrl-C)",
            "--interval SECONDS": "time between two samples, 0.1 to 60 (default: 1)",
            "--ras-events": "also follow a job's RAS events (MONITOR); needs NCCL 2.29.2, asks first",
            "--yes": "with --ras-events, do not ask",
        },
        seconds={"type": duration(1, _MOST_SECONDS)},
        interval={"dest": "sample_interval", "type": interval, "default": 1.0},
    )
    add_job_option(parser, "all jobs")


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Print the samples of the node that the options name, and return its exit status."""
    if options.at:
        raise UsageError("gdrtop live shows all moments of a recording; --at is for gdrtop check and report")
    host = open_host(options, is_whole=True)
    require_running_node(host, "live")
    if options.yes and not options.ras_events:
        raise UsageError("--yes needs --ras-events")
    if options.changes and not options.json:
        raise UsageError("--changes needs --json; the text shows only changes anyway")
    monitor = NodeMonitor(host)
    try:
        if options.ras_events and host.origin.source is not Source.RECORDED:
            follow_ras_events(host, monitor, options.yes)
        return write_live(host, out, parsed(LiveOptions, options), monitor=monitor)
    finally:
        monitor.ras.stop(host)


def follow_ras_events(
    host: Host,
    monitor: NodeMonitor,
    yes: bool,
    answers: TextIO | None = None,
    errors: TextIO | None = None,
    wait: Callable[[float], object] = time.sleep,
) -> bool:
    """Subscribe to the events of the first job, if the policy and the user permit it; report why not."""
    from probes.host.ras import MONITOR
    from probes.live.ras.targets import RasUse, find_targets
    from tui.runtime.ras_questions import RasQuestions, confirmed, read_with_ages

    answers, errors = answers or sys.stdin, errors or sys.stderr
    targets = find_targets(host, read_with_ages(host, monitor.read, wait))
    why = "no NCCL job is visible on this node"
    for target in targets[:1]:
        questions = RasQuestions(host)
        decision = questions.decide(target, RasUse.EVENTS)
        decision = confirmed(questions, target, MONITOR, decision, answers, errors, yes)
        why = "; ".join(decision.refusals)
        if decision.is_allowed:
            address, first = questions.subscribe(target)
            if not isinstance(first, Unknown):
                monitor.ras.follow(address, first, questions.end_events)
                return True
            why = str(first)
    print(f"gdrtop: no RAS events: {why}", file=errors)
    return False


@frozen
class LiveOptions(OutputOptions):
    """What of the samples is printed, and how."""

    seconds: int | None = None  # until Ctrl-C
    changes: bool = False  # of the JSON documents, the first and those in which more than figures changed
    sample_interval: float = 1.0  # seconds
    job: str = ""  # the only one that is printed, as for `is_wanted`


def write_live(
    host: Host,
    out: TextIO,
    options: LiveOptions,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
    monitor: NodeMonitor | None = None,
) -> int:
    """Print a sample each interval, and return the exit status of the last one.

    The first sample is not printed, because it has no rates, unless a recording has no other. The moments of
    a recording follow each other at once.
    """
    monitor = NodeMonitor(host) if monitor is None else monitor
    job = options.job
    chosen = ChosenJob(job) if job else None
    jobs = JobText(f"no job {job} is on this node" if job else "no job uses RDMA or a GPU")
    latest: LiveSample | None = None
    before: object = None
    for number, sample in enumerate(_samples(host, monitor, options, clock, wait)):
        assert monitor.node is not None
        sample = sample if chosen is None else chosen.of(sample)
        if not number and not options.json:
            print_lines([heading(monitor.node)], out, options.ascii)
        latest = sample
        if options.json:
            state = _state(sample)
            if not options.changes or sample.events or state != before:
                write_json_line(live_json(monitor.node, sample), out)
            before = state
        else:
            print_lines(jobs.lines(sample, text_width(out)), out, options.ascii)
        out.flush()
    return exit_status(latest)


def _state(sample: LiveSample) -> object:
    """Return the sample without its figures: the verdict, the findings, and the jobs with their paths."""
    verdict = sample.verdict
    return (
        verdict and (verdict.word, verdict.path, verdict.gpus_served, verdict.nics),
        [(finding.id, finding.severity, finding.devices, finding.ranks) for finding in sample.findings],
        [
            (job.id, job.pids, job.nics, [_word(process) for process in members(sample, job)])
            for job in sample.jobs
        ],
    )


def _word(process: LiveProcess) -> PathWord | TransferWord:
    return process.path.word if process.transfer is None else process.transfer.lasting


def _samples(
    host: Host,
    monitor: NodeMonitor,
    options: LiveOptions,
    clock: Callable[[], float],
    wait: Callable[[float], object],
) -> Iterator[LiveSample]:
    seconds, interval = options.seconds, options.sample_interval
    if host.origin.source is Source.RECORDED:
        from probes.recording.replay_host import ReplayHost

        assert isinstance(host, ReplayHost)
        only = len(host.recording.moments) == 1
        last = len(host.recording.moments) - 1 if seconds is None else seconds
        for moment, sample in enumerate(read_up_to(monitor, host, last)):
            if moment or only:
                yield sample
        return
    if monitor.node is None:
        monitor.read()
    note_slow_results(monitor, host)
    monitor.check()
    next_at = clock() + interval
    count = 0
    while seconds is None or count * interval < seconds:
        wait(max(0.0, next_at - clock()))
        next_at = max(next_at, clock()) + interval  # never faster, however slow the node was
        yield read_judged(monitor)
        count += 1


def live_json(node: Node, sample: LiveSample) -> dict[str, Any]:
    """Return the JSON document of one sample."""
    processes: object = sample.processes
    if not isinstance(sample.processes, Unknown):
        processes = [_process_json(process) for process in sample.processes]
    content = object_from(
        sample,
        LiveDocument,
        exit_status=exit_status(sample),
        findings=[object_from(each, _FINDING, since=time_json(each.since)) for each in sample.findings],
        jobs=[plain_value(job) for job in sample.jobs],
        processes=processes,
        events=[object_from(event, _EVENT, time=time_json(event.at)) for event in sample.events],
    )
    return node_document("live", node, sample.taken_at, content)


def _process_json(process: LiveProcess) -> dict[str, Any]:
    """Return a process without what only the doctor needs: its environment, libraries and open files."""
    return object_from(
        process,
        _PROCESS,
        process.process,
        collectives=[object_from(each, _COLLECTIVE, time=time_json(each.at)) for each in process.collectives],
        path_text=process.path_text,
    )


class ChosenJob:
    """One job of the samples, also while its devices or other jobs come and go."""

    def __init__(self, wanted: str) -> None:
        """`wanted`: as for `is_wanted`."""
        self._wanted = wanted
        self._own: set[str] = set()  # the job, its processes and devices, now and before
        self._others: set[str] = set()  # those of other jobs

    def of(self, sample: LiveSample) -> LiveSample:
        """Return a sample with this job, its devices, and what happens to it or to the whole node."""
        jobs = tuple(job for job in sample.jobs if is_wanted(job, self._wanted))
        for job in sample.jobs:
            names = self._own if job in jobs else self._others
            names.update(job.subject, (bdf for bdf, nic in sample.nic_names.items() if nic in job.nics))
        own, others = self._own, self._others - self._own
        pids = {pid for job in jobs for pid in job.pids}
        events = (each for each in sample.events if not others.issuperset((each.subject, *each.others)))
        found = (each for each in sample.findings if not each.jobs or not own.isdisjoint(each.jobs))
        return replace(
            sample,
            jobs=jobs,
            processes=map_known(
                sample.processes, lambda every: tuple(each for each in every if each.pid in pids)
            ),
            ports=tuple(port for port in sample.ports if port.device in own),
            gpus=tuple(gpu for gpu in sample.gpus if gpu.bdf in own),
            events=tuple(events),
            findings=tuple(found),
        )


def exit_status(sample: LiveSample | None) -> int:
    """Return the status of `gdrtop check` for this moment; 3 also without a job that uses it."""
    if sample is None or sample.verdict is None:
        return 3
    status = judgment.exit_status(sample.verdict)
    if status:
        return status
    jobs = [job for job in sample.jobs if job.role is Role.NCCL]
    words = {process.path.word for job in jobs for process in members(sample, job)}
    return 0 if words.intersection(GDR_WORDS) and PathWord.UNKNOWN not in words else 3


def members(sample: LiveSample, job: LiveJob) -> list[LiveProcess]:
    """Return the processes of a job."""
    found = sample.processes if isinstance(sample.processes, tuple) else ()
    pids = set(job.pids)
    return [process for process in found if process.pid in pids]


def event_lines(events: Sequence[LiveEvent], width: int, not_before: float = 0.0) -> list[Line]:
    """Return events; an explanation that several in a row have in common follows the last of them.

    `not_before`: the time of the line above. An event that is learned of later says when it was, behind its
    text, so that lines are in order of time.
    """
    shown: list[Line] = []
    ordered = sorted(events, key=lambda event: event.at)
    for event, next_event in zip_longest(ordered, ordered[1:]):
        at = max(event.at, not_before)
        when = f" (at {clock_text(event.at)})" if at - event.at >= _LATE_SECONDS else ""
        text = f"{clock_text(at)}  {event.severity.value:<8}  {event.text}{when}"
        shown.extend(wrapped_below(text, width))
        if event.explanation and (next_event is None or next_event.explanation != event.explanation):
            shown.extend(wrapped_below(event.explanation, width, INDENT))
    return shown


def clock_text(at: float) -> str:
    """Return the local time; `at`: seconds since 1970."""
    return f"{datetime.fromtimestamp(at):%H:%M:%S}"


class JobText:
    """The lines of the jobs, only those that changed since they were printed."""

    def __init__(self, without: str) -> None:
        """`without`: what is printed while there is no job."""
        self._without = without
        self._printed: dict[str, LiveJob] = {}
        self._paths: dict[str, str] = {}
        self._limits: tuple[str, ...] = ()
        self._had_jobs = True
        self._at = 0.0  # of the last line, seconds since 1970
        self._counts: object = None  # of the verdict that was printed

    def lines(self, sample: LiveSample, width: int) -> list[Line]:
        """Return what is new in the sample: what cannot be seen, the verdict, jobs that changed, events."""
        shown: list[Line] = []
        if sample.limits != self._limits:
            self._limits = sample.limits
            for limit in sample.limits:
                shown.extend(wrapped_below(f"note: {limit}", width))
        clock = clock_text(sample.taken_at)
        if (verdict := sample.verdict) is not None:
            found = sorted(finding.id for finding in sample.findings)
            # What of a verdict is worth a line when it changes.
            counts = verdict.word, verdict.gpus_served, verdict.critical, verdict.warnings, found
            before, self._counts = self._counts, counts
            if counts != before:
                text = plain(verdict_drawing.draw(verdict))
                shown.extend(wrapped_below(f"{clock}  {text}", width))
                shown.extend(wrapped_below(verdict.reason, width, INDENT) if sample.findings else ())
        printed, paths = self._printed, self._paths
        self._printed, self._paths = {}, {}
        for job in sample.jobs:
            of_job = members(sample, job)
            last, path = printed.get(job.id), path_summary(of_job)
            is_engine = any(process.transfer is not None for process in of_job)
            lasting = " ".join(_word(process).name for process in of_job) if is_engine else path
            if last is None or lasting != paths[job.id] or (not is_engine and _differ(last, job)):
                shown.extend(wrapped_below(f"{clock}  {_job_text(job, path, sample)}", width))
                last = job
            self._printed[job.id], self._paths[job.id] = last, lasting
        if not sample.jobs and self._had_jobs:
            is_unknown = isinstance(sample.processes, Unknown)
            what = f"jobs unknown ({sample.processes})" if is_unknown else self._without
            shown.append(line(f"{clock}  {what}"))
        self._had_jobs = bool(sample.jobs)
        self._at = sample.taken_at if shown else self._at
        shown += event_lines(sample.events, width, self._at)
        self._at = max((self._at, *(event.at for event in sample.events)))
        return shown


def _differ(before: LiveJob, now: LiveJob) -> bool:
    """Return whether a job has to be printed again: something changed, or a rate by a quarter or more."""
    return (
        (before.name, before.pids, before.nics) != (now.name, now.pids, now.nics)
        or bool(before.silent_seconds) != bool(now.silent_seconds)
        or _has_changed(before.sent_gbps, now.sent_gbps)
        or _has_changed(before.received_gbps, now.received_gbps)
    )


def _has_changed(before: Maybe[float], now: Maybe[float]) -> bool:
    if isinstance(before, Unknown) or isinstance(now, Unknown):
        return isinstance(before, Unknown) != isinstance(now, Unknown)
    return abs(now - before) > max(1.0, max(before, now) / 4)


def _job_text(job: LiveJob, path: str, sample: LiveSample) -> str:
    """Return a job: its name, ranks, path, rates and number of NICs."""
    count = len(job.pids)
    served = engine_text(members(sample, job))
    is_nccl = job.role is Role.NCCL and not served
    ranks = plural(count, "rank") if is_nccl else plural(count, "process", "processes")
    if isinstance(job.world_size, int) and job.world_size != count:
        ranks += f" of {job.world_size}"
    parts = [*filter(None, (served,)), ranks, path]
    if rates := rates_text(job, sample, with_reason=True):
        parts.append(rates)
    if job.nics:
        parts.append(plural(len(job.nics), "NIC"))
    if job.slowest is not None:
        parts.append(f"slowest pid {job.slowest.pid}: bus {short(job.slowest.bus_gbps)} GB/s")
    return f"{job.name}: {', '.join(parts)}"


def wrapped_below(text: str, width: int, indent: str = "") -> list[Line]:
    """Wrap a text of the node; all lines but the first are indented below the text beside the clock."""
    return wrapped(text, width, indent=indent, hanging=INDENT[len(indent) :])
