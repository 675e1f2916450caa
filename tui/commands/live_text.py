"""Jobs and events of the live view as lines of text, for a log or a narrow terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from probes.base.text import printable
from probes.base.unknown import Maybe, Unknown
from probes.live.sample import LiveJob, LiveProcess, LiveSample, PathWord, Role
from probes.queries.finding import Severity
from widgets.base.lines import Line, Run, line

_GDR = (PathWord.DMABUF, PathWord.PEERMEM)
_NOT_GDR = (PathWord.STAGED, PathWord.TCP, PathWord.HOST_MEMORY)
_INDENT = " " * 10


def exit_status(sample: LiveSample | None) -> int:
    """Return 0 if all NCCL jobs use GPUDirect RDMA, 1 partly or degraded, 2 none, 3 unknown or no job."""
    if sample is None:
        return 3
    jobs = [job for job in sample.jobs if job.role is Role.NCCL]
    words = Counter(process.path.word for job in jobs for process in members(sample, job))
    gdr, other = sum(words[word] for word in _GDR), sum(words[word] for word in _NOT_GDR)
    if other:
        return 1 if gdr or words[PathWord.UNKNOWN] else 2
    if not gdr or words[PathWord.UNKNOWN]:
        return 3
    return 1 if any(job.odd for job in jobs) else 0


def members(sample: LiveSample, job: LiveJob) -> list[LiveProcess]:
    """Return the processes of a job."""
    found = sample.processes if isinstance(sample.processes, tuple) else ()
    pids = set(job.pids)
    return [process for process in found if process.pid in pids]


def event_lines(
    at: float, severity: Severity, text: str, explanation: str, width: int, with_date: bool = False
) -> list[Line]:
    """Return an event with its explanation below."""
    shown = _wrapped(f"{clock_text(at, with_date)}  {severity.value:<8}  {text}", width)
    return [*shown, *(_wrapped(explanation, width, _INDENT) if explanation else [])]


def clock_text(at: float, with_date: bool = False) -> str:
    """Return the local time, with date and zone on request; `at`: seconds since 1970."""
    local = datetime.fromtimestamp(at).astimezone()
    return local.isoformat(sep=" ", timespec="seconds") if with_date else f"{local:%H:%M:%S}"


class JobText:
    """The lines of the jobs, only those that changed since they were printed."""

    def __init__(self) -> None:
        self._printed: dict[str, tuple[object, ...]] = {}
        self._limits: tuple[str, ...] = ()
        self._had_jobs = True

    def lines(self, sample: LiveSample, width: int) -> list[Line]:
        """Return what is new in the sample: what cannot be seen, jobs that changed, events."""
        shown: list[Line] = []
        if sample.limits != self._limits:
            self._limits = sample.limits
            for limit in sample.limits:
                shown.extend(_wrapped(f"note: {limit}", width))
        clock = clock_text(sample.taken_at)
        current: dict[str, tuple[object, ...]] = {}
        for job in sample.jobs:
            current[job.id] = _signature(job, members(sample, job))
            if self._printed.get(job.id) != current[job.id]:
                shown.extend(_job_lines(clock, job, members(sample, job), width))
        self._printed = current
        if not sample.jobs and self._had_jobs:
            is_unknown = isinstance(sample.processes, Unknown)
            what = f"jobs unknown ({sample.processes})" if is_unknown else "no job uses RDMA or a GPU"
            shown.append(line(f"{clock}  {what}"))
        self._had_jobs = bool(sample.jobs)
        for event in sample.events:
            told = event_lines(event.at, event.severity, event.text, event.explanation, width)
            shown.extend(told)
        return shown


def _signature(job: LiveJob, processes: Sequence[LiveProcess]) -> tuple[object, ...]:
    """Return what a printed job shows; rates change it only by a fifth or more."""
    return (
        job.name,
        job.pids,
        job.nics,
        _paths(processes),
        job.odd and tuple(odd.subject for odd in job.odd),
        _step(job.sent_gbps),
        _step(job.received_gbps),
    )


def _step(rate: Maybe[float]) -> object:
    """Return the rate in steps: 0, below 1 Gb/s, and then each a quarter larger than the one before."""
    if isinstance(rate, Unknown):
        return None
    step = 0
    while rate >= 1.0 and step < 100:
        rate, step = rate / 1.25, step + 1
    return step


def _paths(processes: Iterable[LiveProcess]) -> str:
    """Return the path words, the most frequent first: "GDR (DMA-BUF) × 7, staged × 1 (rank 5)"."""
    by_word: dict[str, list[LiveProcess]] = {}
    for process in processes:
        by_word.setdefault(process.path.text, []).append(process)
    if not by_word:
        return "path unknown"
    (most, *rest) = sorted(by_word.items(), key=lambda item: -len(item[1]))
    if not rest:
        return most[0]
    texts = [f"{most[0]} × {len(most[1])}"]
    texts.extend(f"{word} × {len(odd)} ({_named(odd)})" for word, odd in rest)
    return ", ".join(texts)


def _named(processes: Sequence[LiveProcess]) -> str:
    names = [
        f"pid {process.pid}" if isinstance(process.rank, Unknown) else f"rank {process.rank}"
        for process in processes[:4]
    ]
    more = ["…"] if len(processes) > len(names) else []
    return ", ".join([*names, *more])


def _job_lines(clock: str, job: LiveJob, processes: Sequence[LiveProcess], width: int) -> list[Line]:
    count = len(job.pids)
    noun = "rank" if job.role is Role.NCCL else "process"
    plural = {"rank": "ranks", "process": "processes"}[noun]
    ranks = f"{count} {noun if count == 1 else plural}"
    if isinstance(job.world_size, int) and job.world_size != count:
        ranks += f" of {job.world_size}"
    parts = [ranks, _paths(processes)]
    if job.nics:
        parts.append(f"tx {_rate(job.sent_gbps)} rx {_rate(job.received_gbps)} Gb/s")
        parts.append(f"{len(job.nics)} NIC{'s' if len(job.nics) > 1 else ''}")
    shown = _wrapped(f"{clock}  {job.name}: {', '.join(parts)}", width)
    for odd in job.odd:
        shown.extend(_wrapped(f"! {odd.sentence}", width, _INDENT))
    return shown


def _wrapped(text: str, width: int, indent: str = "") -> list[Line]:
    """Wrap a text; all lines but the first are indented below the text beside the clock."""
    pieces = textwrap.wrap(
        printable(text),
        width,
        initial_indent=indent,
        subsequent_indent=_INDENT,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [(Run(piece),) for piece in pieces or [""]]


def _rate(rate: Maybe[float]) -> str:
    if isinstance(rate, Unknown):
        return "?"
    return f"{rate:.1f}" if rate < 10 else f"{rate:.0f}"
