"""Events of processes: with queue pairs or not, stopped, and the path of their data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from probes.base.evidence import Evidence, Severity
from probes.base.frozen import frozen
from probes.base.text import spans
from probes.base.unknown import Unknown
from probes.facts.jobs.processes import program_of
from probes.live.model.explanations import explanation_of
from probes.live.model.sample import (
    GDR_WORDS,
    NO_PATH,
    WITHOUT_GDR,
    EventKind,
    LiveEvent,
    LiveProcess,
    LiveSample,
    PathWord,
    Role,
    path_phrase,
)
from probes.live.model.settled import Settled
from probes.queries.finding import pid_name
from probes.snapshot.condition import RANK_ENDED, Condition

_MISSED = 2  # samples without a process before it has ended: the sources are not read at one moment
_STOPPED = 2  # a profiler stops a process for less than a second
_PATH = 3  # memory regions of a new communicator are registered one after the other
_MAX_PREDECESSORS = 1024
_MOST_SPANS = 12
_TEARDOWN_SECONDS = 8.0  # the ranks of a job that ends do not end in one second


@frozen
class _Change:
    """What happened to one process; the same of several processes of a job is one event."""

    process: LiveProcess
    kind: EventKind
    severity: Severity
    text: str  # after the process's name
    text_of_many: str

    @property
    def explanation(self) -> str:
        return explanation_of(self.process.path.word if self.kind is EventKind.PATH_CHANGED else self.kind)


@dataclass
class _Known:
    process: LiveProcess
    has_queue_pairs: bool
    missed: int = 0
    is_new: bool = False  # it started while gdrtop watched
    stopped: Settled[bool] = field(default_factory=lambda: Settled(_STOPPED))
    path: Settled[PathWord] = field(default_factory=lambda: Settled(_PATH))


def name_of(process: LiveProcess) -> str:
    """Return "pid 4716 (train.py, rank 5)"."""
    facts = process.process
    words = [word for word in (facts.program, facts.comm) if not isinstance(word, Unknown) and word][:1]
    if not isinstance(process.rank, Unknown):
        words.append(f"rank {process.rank}")
    return f"pid {process.pid} ({', '.join(words)})" if words else f"pid {process.pid}"


class ProcessEvents:
    """Compare the processes of each sample with those before."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] | None = None  # None: no sample yet
        self._paths: dict[tuple[str, ...], PathWord] = {}  # of processes that have ended
        self._job_names: dict[str, str] = {}
        self._ended: dict[int, tuple[LiveProcess, float, float]] = {}  # ranks: (it, at, taken at)

    def update(self, sample: LiveSample) -> list[LiveEvent]:
        """Return what has changed; nothing while the processes are unknown."""
        if isinstance(sample.processes, Unknown):
            return []
        changes: list[_Change] = []
        is_first = self._known is None
        known = {} if self._known is None else self._known
        now = {process.pid: process for process in sample.processes}
        for process in now.values():
            changes += self._seen(known, process, is_first)
        for pid in [pid for pid in known if pid not in now]:
            gone = known[pid]
            gone.missed += 1
            if gone.missed >= _MISSED:
                del known[pid]
                if gone.path.value is not None:
                    self._paths.pop(_key(gone.process), None)
                    self._paths[_key(gone.process)] = gone.path.value
                    while len(self._paths) > _MAX_PREDECESSORS:
                        del self._paths[next(iter(self._paths))]
                if gone.has_queue_pairs:
                    changes.append(_ended(gone.process, "ended", "ended"))
                    if gone.process.role is Role.NCCL:
                        self._ended[pid] = gone.process, sample.at, sample.taken_at
        self._known = known
        names = {job.id: job.name for job in sample.jobs}
        events = _folded(changes, self._job_names | names, sample.taken_at)
        left = {known_process.process.job for known_process in known.values()}
        self._job_names = {job: name for job, name in self._job_names.items() if job in left} | names
        return events

    def conditions(self, sample: LiveSample) -> Iterator[Condition]:
        """Yield the ranks that have ended while the other ranks of their job stay."""
        if not self._ended or isinstance(sample.processes, Unknown):
            return
        running = {_place_in_job(process) for process in sample.processes}
        jobs = {job.id: job for job in sample.jobs}
        for pid, (process, at, _) in list(self._ended.items()):
            if process.job not in jobs or _place_in_job(process) in running or sample.at < at:
                del self._ended[pid]
        lost: dict[str, list[int]] = {}
        for pid, (process, at, _) in self._ended.items():
            if sample.at - at >= _TEARDOWN_SECONDS:
                lost.setdefault(process.job, []).append(pid)
        for name, pids in lost.items():
            job, ranks = jobs[name], [self._ended[pid][0] for pid in pids]
            verb = "have" if len(ranks) > 1 else "has"
            text = f"{_ranks(ranks)} of {job.name} {verb} exited, and the other ranks are waiting"
            since = min(self._ended[pid][2] for pid in pids)
            shown = tuple(Evidence(f"/proc/{pid}", "the process has exited") for pid in pids[:8])
            # A GPU that is lost has no processes.
            subjects = tuple(frozenset((pid_name(rank.pid), *(rank.gpus or job.gpus))) for rank in ranks)
            about = ((), tuple(rank.rank_name for rank in ranks), name, job.name, subjects)
            yield Condition(RANK_ENDED, name, text, since, Severity.WARNING, shown, *about)

    def is_stopped(self, process: LiveProcess) -> bool:
        """Return whether a process is stopped, and not only for a moment by a profiler."""
        known = (self._known or {}).get(process.pid)
        return known is not None and known.stopped.value is True

    def _seen(self, known: dict[int, _Known], process: LiveProcess, is_first: bool) -> list[_Change]:
        events: list[_Change] = []
        # An engine's open queue pairs count as used once bytes move, which is no start.
        has_queue_pairs = process.has_queue_pairs and (
            not process.is_engine or any(nic.ready for nic in process.nics)
        )
        before = known.get(process.pid)
        if before is None:
            before = known[process.pid] = _Known(process, has_queue_pairs, is_new=not is_first)
            if has_queue_pairs and not is_first:
                events.append(_started(process))
        elif has_queue_pairs and not before.has_queue_pairs:
            events.append(_started(process))
            before.missed = 0
        elif not process.is_listed:
            has_queue_pairs = before.has_queue_pairs
        elif before.has_queue_pairs and not has_queue_pairs:
            before.missed += 1
            if before.missed < _MISSED:
                has_queue_pairs = True
            else:
                events.append(_ended(process, "has closed its queue pairs", "have closed their queue pairs"))
        else:
            before.missed = 0
        before.process, before.has_queue_pairs = process, has_queue_pairs
        if process.is_stopped is not None:
            changed = before.stopped.update(process.is_stopped)
            if changed is not None:
                events.append(_stopped(process, changed[1]))
        if process.path.word not in NO_PATH:
            events += self._path(before, process)
        return events

    def _path(self, tracked: _Known, process: LiveProcess) -> list[_Change]:
        was_settled = tracked.path.value is not None
        if (changed := tracked.path.update(process.path.word)) is not None:
            return [_path_changed(process, changed[0], ("now", "now"))]
        if not was_settled and tracked.path.value is not None:
            earlier = self._paths.pop(_key(process), None)
            if earlier is not None and earlier is not tracked.path.value:
                return [_path_changed(process, earlier, ("restarted and now", "restarted and now"))]
            if earlier is None and tracked.is_new and tracked.path.value in WITHOUT_GDR:
                return [_path_changed(process, None, ("has started and", "have started and"))]
        return []


def _key(process: LiveProcess) -> tuple[str, ...]:
    """Return what a process and its successor after a restart have in common."""
    return (str(process.process.program), str(process.process.uid), str(process.rank), *process.gpus)


def _place_in_job(process: LiveProcess) -> tuple[str, ...]:
    """Return what tells a process from the others of its job: its rank, or its GPUs where that is unknown."""
    if isinstance(process.rank, Unknown):
        return (process.job, *process.gpus)
    return process.job, str(process.rank)


def _folded(changes: Sequence[_Change], names: Mapping[str, str], at: float) -> list[LiveEvent]:
    """Return an event for each change; the same change of several processes of a job is one."""
    groups: dict[tuple[object, ...], list[_Change]] = {}
    for change in changes:
        key = change.process.job, change.kind, change.severity, change.text_of_many
        groups.setdefault(key, []).append(change)
    events = []
    for group in groups.values():
        first = group[0]
        subject, text = f"pid {first.process.pid}", f"{name_of(first.process)} {first.text}"
        if len(group) > 1:
            subject = names.get(first.process.job) or program_of(first.process.process)
            text = f"{_ranks([change.process for change in group])} of {subject} {first.text_of_many}"
        events.append(LiveEvent(at, first.kind, first.severity, subject, text, first.explanation))
    return events


def _ranks(processes: Sequence[LiveProcess]) -> str:
    """Return "ranks 0-3, 7"; pids where a rank is unknown."""
    if len(processes) == 1:
        return processes[0].rank_name
    ranks = [process.rank for process in processes if not isinstance(process.rank, Unknown)]
    word, numbers = "ranks", ranks
    if len(ranks) < len(processes):
        word, numbers = "pids", [process.pid for process in processes]
    shown = spans(numbers)
    more = ", …" if len(shown) > _MOST_SPANS else ""
    return f"{word} {', '.join(shown[:_MOST_SPANS])}{more}"


def _started(process: LiveProcess) -> _Change:
    nics = [nic.device for nic in process.nics if nic.queue_pairs > nic.merely_open]
    where = nics[0] if len(nics) == 1 else f"{len(nics)} NICs"
    return _Change(process, EventKind.PROCESS_STARTED, Severity.NOTE, f"uses RDMA on {where}", "use RDMA")


def _ended(process: LiveProcess, text: str, text_of_many: str) -> _Change:
    return _Change(process, EventKind.PROCESS_ENDED, Severity.NOTE, text, text_of_many)


def _stopped(process: LiveProcess, is_stopped: bool) -> _Change:
    kind = EventKind.PROCESS_STOPPED if is_stopped else EventKind.PROCESS_RESUMED
    severity = Severity.WARNING if is_stopped else Severity.NOTE
    texts = ("is stopped", "are stopped") if is_stopped else ("is running again", "are running again")
    return _Change(process, kind, severity, *texts)


def _path_changed(process: LiveProcess, before: PathWord | None, verbs: tuple[str, str]) -> _Change:
    now = process.path
    is_worse = now.word not in GDR_WORDS and (before is None or before in GDR_WORDS)
    likely = "likely " * now.is_likely
    earlier = "" if before is None else f", previously {before.value}"
    severity = Severity.WARNING if is_worse else Severity.NOTE
    text = f"{verbs[0]} {likely}{path_phrase(now.word)}{earlier}"
    text_of_many = f"{verbs[1]} {likely}{path_phrase(now.word, of_many=True)}{earlier}"
    return _Change(process, EventKind.PATH_CHANGED, severity, text, text_of_many)
