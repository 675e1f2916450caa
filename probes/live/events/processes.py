"""Events of processes: with queue pairs or not, stopped, and the path of their data."""

from __future__ import annotations

from dataclasses import dataclass, field

from probes.base.unknown import Unknown
from probes.live.model.explanations import EXPLANATIONS, PATHS
from probes.live.model.sample import EventKind, LiveEvent, LiveProcess, LiveSample, PathWord, path_phrase
from probes.live.model.settled import Settled
from probes.queries.finding import Severity

_MISSED = 2  # samples without a process before it has ended: the sources are not read at one moment
_STOPPED = 2  # a profiler stops a process for less than a second
_PATH = 3  # memory regions of a new communicator are registered one after the other
_STOPPED_STATES = ("T", "t")
_DIRECT = (PathWord.DMABUF, PathWord.PEERMEM)
_NO_PATH = (PathWord.UNKNOWN, PathWord.NO_NIC)
_MAX_PREDECESSORS = 1024


@dataclass
class _Known:
    """A process that was there in the samples before."""

    process: LiveProcess
    has_queue_pairs: bool
    missed: int = 0
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

    def update(self, sample: LiveSample) -> list[LiveEvent]:
        """Return what has changed; nothing while the processes are unknown."""
        if isinstance(sample.processes, Unknown):
            return []
        events: list[LiveEvent] = []
        is_first = self._known is None
        known = {} if self._known is None else self._known
        now = {process.pid: process for process in sample.processes}
        for process in now.values():
            events += self._seen(known, process, sample.taken_at, is_first)
        for pid in [pid for pid in known if pid not in now]:
            gone = known[pid]
            gone.missed += 1
            if gone.missed >= _MISSED:
                del known[pid]
                self._remember(gone)
                if gone.has_queue_pairs:
                    events.append(_ended(gone.process, sample.taken_at, "ended"))
        self._known = known
        return events

    def _seen(
        self, known: dict[int, _Known], process: LiveProcess, at: float, is_first: bool
    ) -> list[LiveEvent]:
        events: list[LiveEvent] = []
        has_queue_pairs = process.has_queue_pairs
        one = known.get(process.pid)
        if one is None:
            one = known[process.pid] = _Known(process, has_queue_pairs)
            if has_queue_pairs and not is_first:
                events.append(_started(process, at))
        elif has_queue_pairs and not one.has_queue_pairs:
            events.append(_started(process, at))
            one.missed = 0
        elif not process.is_listed:
            has_queue_pairs = one.has_queue_pairs
        elif one.has_queue_pairs and not has_queue_pairs:
            one.missed += 1
            if one.missed < _MISSED:
                has_queue_pairs = True
            else:
                events.append(_ended(process, at, "has closed its queue pairs"))
        else:
            one.missed = 0
        one.process, one.has_queue_pairs = process, has_queue_pairs
        if not isinstance(process.state, Unknown):
            changed = one.stopped.update(process.state in _STOPPED_STATES)
            if changed is not None:
                events.append(_stopped(process, at, changed[1]))
        if process.path.word not in _NO_PATH:
            events += self._path(one, process, at)
        return events

    def _path(self, one: _Known, process: LiveProcess, at: float) -> list[LiveEvent]:
        was_settled = one.path.value is not None
        changed = one.path.update(process.path.word)
        if changed is not None:
            return [_path_changed(process, at, changed[0], f"{name_of(process)} now")]
        if not was_settled and one.path.value is not None:
            before = self._paths.pop(_key(process), None)
            if before is not None and before is not one.path.value:
                return [_path_changed(process, at, before, f"{name_of(process)} was restarted and now")]
        return []

    def _remember(self, gone: _Known) -> None:
        if gone.path.value is not None:
            self._paths.pop(_key(gone.process), None)
            self._paths[_key(gone.process)] = gone.path.value
            while len(self._paths) > _MAX_PREDECESSORS:
                del self._paths[next(iter(self._paths))]


def _key(process: LiveProcess) -> tuple[str, ...]:
    """Return what a process and its successor after a restart have in common."""
    return (str(process.process.program), str(process.process.uid), str(process.rank), *process.gpus)


def _started(process: LiveProcess, at: float) -> LiveEvent:
    nics = [nic.device for nic in process.nics if nic.queue_pairs]
    where = nics[0] if len(nics) == 1 else f"{len(nics)} NICs"
    kind = EventKind.PROCESS_STARTED
    text = f"{name_of(process)} has queue pairs on {where}"
    return LiveEvent(at, kind, Severity.NOTE, f"pid {process.pid}", text, EXPLANATIONS[kind])


def _ended(process: LiveProcess, at: float, what: str) -> LiveEvent:
    kind = EventKind.PROCESS_ENDED
    text = f"{name_of(process)} {what}"
    return LiveEvent(at, kind, Severity.NOTE, f"pid {process.pid}", text, EXPLANATIONS[kind])


def _stopped(process: LiveProcess, at: float, is_stopped: bool) -> LiveEvent:
    kind = EventKind.PROCESS_STOPPED if is_stopped else EventKind.PROCESS_RESUMED
    severity = Severity.WARNING if is_stopped else Severity.NOTE
    text = f"{name_of(process)} {'is stopped' if is_stopped else 'runs again'}"
    return LiveEvent(at, kind, severity, f"pid {process.pid}", text, EXPLANATIONS[kind])


def _path_changed(process: LiveProcess, at: float, before: PathWord, what: str) -> LiveEvent:
    now = process.path
    is_worse = before in _DIRECT and now.word not in _DIRECT
    return LiveEvent(
        at,
        EventKind.PATH_CHANGED,
        Severity.WARNING if is_worse else Severity.NOTE,
        f"pid {process.pid}",
        f"{what} {'likely ' * now.is_likely}{path_phrase(now.word)}, before: {before.value}",
        PATHS.get(now.word, ""),
    )
