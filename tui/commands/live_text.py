"""Jobs and events of the live view as lines of text, for a log or a narrow terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import zip_longest

from probes.base.text import plural
from probes.base.unknown import Maybe, Unknown
from probes.checks import judgment
from probes.live.model.sample import LiveEvent, LiveJob, LiveProcess, LiveSample, PathWord, Role
from probes.live.processes.job_summaries import path_summary
from probes.snapshot.verdict import Verdict
from widgets.base.figures import short
from widgets.base.lines import Line, line, plain, wrapped
from widgets.live.jobs import rates_text
from widgets.node import verdict as verdict_drawing

_GDR = (PathWord.DMABUF, PathWord.PEERMEM)
INDENT = " " * 10


def exit_status(sample: LiveSample | None) -> int:
    """Return the status of `gdrtop check` for this moment; 3 also without a job that uses it."""
    if sample is None or sample.verdict is None:
        return 3
    status = judgment.exit_status(sample.verdict)
    if status:
        return status
    jobs = [job for job in sample.jobs if job.role is Role.NCCL]
    words = {process.path.word for job in jobs for process in members(sample, job)}
    return 0 if words.intersection(_GDR) and PathWord.UNKNOWN not in words else 3


def members(sample: LiveSample, job: LiveJob) -> list[LiveProcess]:
    """Return the processes of a job."""
    found = sample.processes if isinstance(sample.processes, tuple) else ()
    pids = set(job.pids)
    return [process for process in found if process.pid in pids]


def event_lines(events: Sequence[LiveEvent], width: int) -> list[Line]:
    """Return events; an explanation that several in a row have in common follows the last of them."""
    shown: list[Line] = []
    for event, next_event in zip_longest(events, events[1:]):
        shown.extend(wrapped_below(f"{clock_text(event.at)}  {event.severity.value:<8}  {event.text}", width))
        if event.explanation and (next_event is None or next_event.explanation != event.explanation):
            shown.extend(wrapped_below(event.explanation, width, INDENT))
    return shown


def clock_text(at: float) -> str:
    """Return the local time; `at`: seconds since 1970."""
    return f"{datetime.fromtimestamp(at):%H:%M:%S}"


class JobText:
    """The lines of the jobs, only those that changed since they were printed."""

    def __init__(self) -> None:
        self._printed: dict[str, LiveJob] = {}
        self._paths: dict[str, str] = {}
        self._limits: tuple[str, ...] = ()
        self._had_jobs = True
        self._counts: object = None  # of the verdict that was printed

    def lines(self, sample: LiveSample, width: int) -> list[Line]:
        """Return what is new in the sample: what cannot be seen, the verdict, jobs that changed, events."""
        shown: list[Line] = []
        if sample.limits != self._limits:
            self._limits = sample.limits
            for limit in sample.limits:
                shown.extend(wrapped_below(f"note: {limit}", width))
        clock = clock_text(sample.taken_at)
        if sample.verdict is not None and _counts(sample.verdict) != self._counts:
            self._counts = _counts(sample.verdict)
            verdict = plain(verdict_drawing.draw(sample.verdict))
            shown.extend(wrapped_below(f"{clock}  {verdict}", width))
            if sample.findings:
                shown.extend(wrapped_below(sample.verdict.reason, width, INDENT))
        printed, paths = self._printed, self._paths
        self._printed, self._paths = {}, {}
        for job in sample.jobs:
            before, path = printed.get(job.id), path_summary(members(sample, job))
            if before is None or path != paths[job.id] or _differ(before, job):
                shown.extend(wrapped_below(f"{clock}  {_job_text(job, path)}", width))
                before = job
            self._printed[job.id], self._paths[job.id] = before, path
        if not sample.jobs and self._had_jobs:
            is_unknown = isinstance(sample.processes, Unknown)
            what = f"jobs unknown ({sample.processes})" if is_unknown else "no job uses RDMA or a GPU"
            shown.append(line(f"{clock}  {what}"))
        self._had_jobs = bool(sample.jobs)
        return [*shown, *event_lines(sample.events, width)]


def _counts(verdict: Verdict) -> object:
    """Return what of a verdict is worth a line when it changes."""
    return verdict.state, verdict.gpus_served, verdict.critical, verdict.warnings


def _differ(before: LiveJob, now: LiveJob) -> bool:
    """Return whether a job has to be printed again: something changed, or a rate by a quarter or more."""
    return (
        (before.name, before.pids, before.nics) != (now.name, now.pids, now.nics)
        or _has_changed(before.sent_gbps, now.sent_gbps)
        or _has_changed(before.received_gbps, now.received_gbps)
    )


def _has_changed(before: Maybe[float], now: Maybe[float]) -> bool:
    if isinstance(before, Unknown) or isinstance(now, Unknown):
        return isinstance(before, Unknown) != isinstance(now, Unknown)
    return abs(now - before) > max(1.0, max(before, now) / 4)


def _job_text(job: LiveJob, path: str) -> str:
    """Return a job: its name, ranks, path, rates and number of NICs."""
    count = len(job.pids)
    ranks = plural(count, "rank") if job.role is Role.NCCL else plural(count, "process", "processes")
    if isinstance(job.world_size, int) and job.world_size != count:
        ranks += f" of {job.world_size}"
    parts = [ranks, path]
    if job.nics:
        parts += [rates_text(job, with_reason=True), plural(len(job.nics), "NIC")]
    if job.slowest is not None:
        parts.append(f"slowest pid {job.slowest.pid}: bus {short(job.slowest.bus_gbps)} GB/s")
    return f"{job.name}: {', '.join(parts)}"


def wrapped_below(text: str, width: int, indent: str = "") -> list[Line]:
    """Wrap a text of the node; all lines but the first are indented below the text beside the clock."""
    return wrapped(text, width, indent=indent, hanging=INDENT[len(indent) :])
