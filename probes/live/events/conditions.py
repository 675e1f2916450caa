"""Problems of running jobs that last, from the paths and states of ranks and from what detectors know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from statistics import median

from probes.base.evidence import Evidence, Severity
from probes.base.grouping import grouped
from probes.base.text import capitalized, join_limited, plural, printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.live.model.activity import waiting_text
from probes.live.model.sample import (
    COLLISION,
    LiveJob,
    LiveProcess,
    LiveSample,
    PathWord,
    Role,
    Standstill,
    path_phrase,
    program_of,
    ranks_wait,
)
from probes.live.model.transfer import OVER_TCP as TCP_WORDS
from probes.live.model.transfer import Certainty, TransferPath, TransferWord
from probes.live.processes.fall_backs import causes, steps
from probes.live.processes.jobs import path_summary
from probes.queries.finding import pid_name
from probes.snapshot.condition import (
    CONGESTED,
    CONTRADICTED,
    ERRORS_RISING,
    FLAPPING,
    KV_OVER_TCP,
    KV_STAGED,
    ODD_RANK,
    OVER_TCP,
    PAUSED,
    PLANE_UNUSED,
    SILENT,
    SLOW_NIC,
    STAGED,
    STOPPED,
    THROTTLED,
    TRAFFIC_FELL,
    UNEVEN,
    Condition,
    Unread,
    Watched,
    stage_of,
)

# In one sample; others need rates.
SEEN_AT_ONCE = frozenset({STAGED, OVER_TCP, CONTRADICTED, STOPPED, ODD_RANK})
_WITHOUT_GDR = {PathWord.STAGED: STAGED, PathWord.TCP: OVER_TCP}
_INSTEAD = {PathWord.TCP: " instead of RDMA"}
_SEEN_SECONDS = 10.0  # by then everything has been seen that was there when the watching began
_MOST_EVIDENCE = 8
_MOST_NAME = 64  # characters of a program's name in a title
_SHOWN = attrgetter("devices", "ranks", "severity", "causes")
_COLLIDES = "An ECMP collision likely slows {} of {}"
_OF_ASPECTS = {"rate": SLOW_NIC, "volume": UNEVEN, "plane": PLANE_UNUSED}
_STATE, _PAUSE, _SENT = attrgetter("state"), attrgetter("pause_percent"), attrgetter("sent_gbps")
Key = tuple[str, str]


class Conditions:
    """The conditions of a node over time; each keeps its text and its beginning until it ends."""

    def __init__(self) -> None:
        self._known: dict[Key, Condition] = {}
        self._began_at: float | None = None
        self._watched: Watched | None = None  # as it was returned last
        self._seen_at: dict[int, float] = {}  # since when a process is in a job that uses the network, by pid

    def update(
        self,
        sample: LiveSample,
        detected: Iterable[Condition] = (),
        is_stopped: Callable[[LiveProcess], bool] | None = None,
    ) -> Watched:
        """Return what the sample and detectors show; `is_stopped`: of a process, by default at once."""
        if self._began_at is None or sample.at < self._began_at:  # a recording was rewound
            self._known.clear()
            self._seen_at.clear()
            self._began_at = sample.at
        seconds = sample.at - self._began_at
        found: dict[Key, Condition] = {}
        stops = is_stopped or (lambda process: process.is_stopped is True)
        for condition in (*_of_jobs(sample, stops), *detected):
            key = condition.check, condition.subject
            before = self._known.get(key)
            lasts = sample.taken_at - condition.since
            if before is None and seconds > _SEEN_SECONDS and lasts < seconds:
                condition = replace(condition, is_begun=True)
            if before is not None:
                is_same = _SHOWN(before) == _SHOWN(condition)
                now = replace(condition, since=before.since, is_begun=before.is_begun)
                condition = before if is_same else now
            found.setdefault(key, condition)
        self._known = found
        watched = Watched(
            seconds=stage_of(seconds),
            jobs=map_known(sample.processes, lambda _: len(_network_jobs(sample))),
            conditions=tuple(found.values()),
            missing=sample.missing,
            unknown_path=_unknown_path(sample),
            unread=_unread(sample),
            job_seconds=stage_of(self._job_seconds(sample)),
        )
        self._watched = self._watched if self._watched == watched else watched
        return self._watched

    def _job_seconds(self, sample: LiveSample) -> float:
        """Return for how long the newest job that uses the network was watched; a restarted job is new."""
        if isinstance(sample.processes, Unknown):
            return 0.0
        jobs = _network_jobs(sample)
        self._seen_at = {pid: self._seen_at.get(pid, sample.at) for job in jobs for pid in job.pids}
        began = (min(self._seen_at[pid] for pid in job.pids) for job in jobs)
        return sample.at - max(began, default=sample.at)


def _network_jobs(sample: LiveSample) -> list[LiveJob]:
    return [job for job in sample.jobs if job.role is not Role.GPU]


def _unknown_path(sample: LiveSample) -> str:
    """Return why the path of a NCCL rank is unknown; "" if all are known."""
    for process in () if isinstance(sample.processes, Unknown) else sample.processes:
        if process.role in (Role.OTHER, Role.GPU) and isinstance(process.threads, Unknown):
            return str(process.threads)  # it may be a rank: NCCL's threads would tell
        if process.role is Role.NCCL and process.path.word is PathWord.UNKNOWN and process.transfer is None:
            return process.path.why or "unknown"
    return ""


def _unread(sample: LiveSample) -> dict[str, Unread]:
    """Return why nothing that a check looks at is known: without figures, nothing is seen."""
    ports, processes = sample.ports, () if isinstance(sample.processes, Unknown) else sample.processes
    errors = (count for port in ports for count in port.counters.values())
    reasons = (map_known(gpu.live, lambda live: live.throttle_reasons) for gpu in sample.gpus)
    figures: tuple[tuple[tuple[str, ...], str, Iterable[Maybe[object]]], ...] = (
        ((FLAPPING,), "the states of the ports", map(_STATE, ports)),
        ((PAUSED,), "the pause counters of the ports", map(_PAUSE, ports)),
        ((ERRORS_RISING,), "the error counters of the ports", errors),
        ((THROTTLED,), "the throttle reasons of the GPUs", reasons),
        ((STOPPED,), "the states of the processes", map(_STATE, processes)),
        (
            (SLOW_NIC, TRAFFIC_FELL, CONGESTED, SILENT, UNEVEN, PLANE_UNUSED),
            "the rates of the ports",
            map(_SENT, ports),
        ),
    )
    found: dict[str, Unread] = {}
    for checks, what, values in figures:
        if (why := _all_unknown(values)) is not None:
            found |= dict.fromkeys(checks, Unread(what, why))
    for process in processes:
        path = process.transfer
        if path is not None and path.tcp_unread is not None and path.lasting not in TCP_WORDS:
            unread = Unread("the TCP connections of engines", path.tcp_unread)
            found |= dict.fromkeys((KV_OVER_TCP, KV_STAGED), unread)
    for job in reversed(sample.jobs):  # the first one counts
        waits = ranks_wait(job.standstill)
        if isinstance(waits, Unknown) and waits.reason is not Reason.NOT_YET:
            found[SILENT] = Unread("what the job moves, and the use of its GPUs", waits)
    return found


def _all_unknown(values: Iterable[Maybe[object]]) -> Unknown | None:
    """Return the first reason if no value is known; None also where the node has no such figure."""
    first: Unknown | None = None
    for value in values:
        if not isinstance(value, Unknown):
            return None
        if first is None and value.reason is not Reason.NOT_THERE:
            first = value
    return first


def _of_jobs(sample: LiveSample, is_stopped: Callable[[LiveProcess], bool]) -> Iterator[Condition]:
    if isinstance(sample.processes, Unknown):
        return
    members = grouped((process.job, process) for process in sample.processes)
    for job in sample.jobs:
        if job.role is Role.NCCL:
            ranks = [process for process in members.get(job.id, ()) if process.role is Role.NCCL]
            yield from _without_gdr(job, ranks, sample)
        odd = [process for process in members.get(job.id, ()) if process.path.contradiction]
        if odd:
            yield _contradicted(job, odd, sample)
        yield from _transfers(job, members.get(job.id, ()), sample)
        stopped = [process for process in members.get(job.id, ()) if is_stopped(process)]
        if stopped and job.role is not Role.GPU:
            yield _stopped(job, stopped, sample)
        still = job.standstill
        if isinstance(still, Standstill) and ranks_wait(still) is True:
            yield _silent(job, still, members.get(job.id, ()), sample)
        yield from _odd(job, sample)


def _without_gdr(job: LiveJob, ranks: Sequence[LiveProcess], sample: LiveSample) -> Iterator[Condition]:
    """Yield that ranks copy through host memory, or use TCP; critical if that is certain of all of them."""
    for word, check in _WITHOUT_GDR.items():
        affected = [rank for rank in ranks if rank.path.word is word]
        if not affected:
            continue
        # Some may copy through host memory, and others use TCP.
        is_certain = all(rank.path.word in _WITHOUT_GDR and not rank.path.is_likely for rank in ranks)
        likely = "likely " * any(rank.path.is_likely for rank in affected)
        evidence = [Evidence(job.name, path_summary(ranks))]
        for rank in affected[:_MOST_EVIDENCE]:
            for shown in rank.path.evidence[:1]:
                evidence.append(Evidence(shown.source, f"{rank.rank_name}: {shown.value}"))
        text = f"{_names(affected, ranks)} of {job.name} {likely}{path_phrase(word, len(affected) > 1)}"
        severity = Severity.CRITICAL if is_certain else Severity.WARNING
        condition = _of_ranks(check, job, text, sample.taken_at, evidence, affected, severity)
        program = printable(program_of(job.name), _MOST_NAME)
        who = f"{capitalized(_names(affected, ranks))} of {program}"
        who = program if len(affected) == len(ranks) else who
        is_many = 1 < len(affected) < len(ranks)
        does = path_phrase(word, is_many).removesuffix(" (staged)") + _INSTEAD.get(word, "")
        yield replace(condition, effect=f"{who} {likely}{does}")


_FALL_BACKS = {KV_OVER_TCP: TCP_WORDS, KV_STAGED: (TransferWord.STAGED,)}
_MOVES = {KV_OVER_TCP: "over TCP", KV_STAGED: "through host memory"}
_LEAST_READINGS = 2  # one alone may be weights that are loaded over TCP


def _transfers(job: LiveJob, members: Sequence[LiveProcess], sample: LiveSample) -> Iterator[Condition]:
    """Yield that engines move KV caches over TCP or host memory, and no setting asks for it."""
    for check, words in _FALL_BACKS.items():
        found = [
            (process, path)
            for process in members
            if (path := process.transfer) is not None and path.lasting in words
            if path.readings >= _LEAST_READINGS and not path.by_configuration
        ]
        if not found:
            continue
        affected, paths = [process for process, _ in found], [path for _, path in found]
        is_ucx = any("UCX" in known(each.serving.engine, "") for each in affected if each.serving)
        ids = steps({name for path in paths for name, _ in path.causes}, is_ucx)
        likely = "likely " * any(path.certainty is Certainty.LIKELY for path in paths)
        many = "s" * (len(affected) == 1)
        does = f"{likely}move{many} KV caches {_MOVES[check]}"
        cause = causes()[ids[0]].cause
        why = f". {cause}" if cause else ""
        text = f"{_names(affected, ())} of {job.name} {does}{_to_peers(paths)}{why.rstrip('.')}"
        evidence = [
            Evidence(shown.source, f"{process.rank_name}: {shown.value}")
            for process, path in found[:_MOST_EVIDENCE]
            for shown in (*(sign for _, sign in path.causes), *path.evidence)
        ]
        condition = _of_ranks(check, job, text, sample.taken_at, evidence[:_MOST_EVIDENCE], affected)
        effect = f"{printable(program_of(job.name), _MOST_NAME)} {likely}moves KV caches {_MOVES[check]}"
        yield replace(condition, effect=effect, causes=ids)


def _to_peers(paths: Sequence[TransferPath]) -> str:
    names = dict.fromkeys(peer.text for path in paths for peer in path.peers)
    return f" ({join_limited(names)})" if names else ""


def _contradicted(job: LiveJob, odd: Sequence[LiveProcess], sample: LiveSample) -> Condition:
    """Return that processes use a path that the node cannot have; a note where the use is certain."""
    first = odd[0].path
    text = f"{_names(odd, ())} of {job.name}: {first.contradiction[:1].lower()}{first.contradiction[1:]}"
    is_certain = all(process.path.word is not PathWord.UNKNOWN for process in odd)
    severity = Severity.NOTE if is_certain else Severity.WARNING
    return _of_ranks(CONTRADICTED, job, text, sample.taken_at, first.evidence, odd, severity)


def _stopped(job: LiveJob, stopped: Sequence[LiveProcess], sample: LiveSample) -> Condition:
    verb = "is" if len(stopped) == 1 else "are"
    text = f"{_names(stopped, ())} of {job.name} {verb} stopped, so the whole job is waiting"
    evidence = [
        Evidence(f"/proc/{process.pid}/stat", f"{process.rank_name}: state {process.state}")
        for process in stopped[:_MOST_EVIDENCE]
    ]
    return _of_ranks(STOPPED, job, text, sample.taken_at, evidence, stopped)


def _silent(job: LiveJob, still: Standstill, ranks: Sequence[LiveProcess], sample: LiveSample) -> Condition:
    """Return that a job moves no data while its ranks wait, with what their GPUs do."""
    time = "at least since gdrtop began to look" if still.is_whole else "for over a minute"
    own = {gpu for rank in ranks for gpu in rank.gpus}
    watts = [map_known(gpu.live, lambda live: live.power_watts) for gpu in sample.gpus if gpu.bdf in own]
    power = [each for each in watts if not isinstance(each, Unknown)]
    evidence = [
        Evidence(still.source, f"no traffic on {still.shown_by}"),
        Evidence("NVML", f"{waiting_text(still)}{f', at {median(power):.0f} W' if power else ''}"),
    ]
    states = (rank for rank in ranks if rank.rank_name in still.blocked)
    evidence += [
        Evidence(f"/proc/{rank.pid}/stat", f"{rank.rank_name}: state {rank.state}") for rank in states
    ]
    text = f"no data has moved on {still.shown_by} of {job.name} {time}, while {waiting_text(still)}"
    since, shown = sample.taken_at - still.seconds, tuple(evidence[:_MOST_EVIDENCE])
    about = (job.nics, tuple(rank.rank_name for rank in ranks), job.id, job.name, (job.subject,))
    return Condition(SILENT, job.id, text, since, Severity.WARNING, shown, *about)


def _of_ranks(
    check: str,
    job: LiveJob,
    text: str,
    at: float,
    evidence: Iterable[Evidence],
    ranks: Sequence[LiveProcess],
    severity: Severity = Severity.WARNING,
) -> Condition:
    names, shown = tuple(rank.rank_name for rank in ranks), tuple(evidence)
    gpus, nics = (
        (gpu for rank in ranks for gpu in rank.gpus),
        (nic for rank in ranks for nic in rank.ready_nics),
    )
    subjects = tuple(_subject(rank, job.name) for rank in ranks)
    about = (tuple(dict.fromkeys((*gpus, *nics))), names, job.id, job.name)
    return Condition(check, job.id, text, at, severity, shown, *about, subjects=subjects)


def _subject(process: LiveProcess, *more: str) -> frozenset[str]:
    return frozenset((pid_name(process.pid), *process.gpus, *process.ready_nics, *more))


def _odd(job: LiveJob, sample: LiveSample) -> Iterator[Condition]:
    """Yield what is odd in a job, but for paths and stopped ranks, which are conditions of their own."""
    for odd in job.odd:
        if odd.aspect in ("path", "state"):
            continue
        process = None if odd.pid is None else sample.process(odd.pid)
        check = _OF_ASPECTS.get(odd.aspect, ODD_RANK)
        devices = (odd.device,) if odd.device else () if process is None else process.gpus
        yield Condition(
            check=check,
            subject=odd.device or f"{job.id} {odd.subject}",
            text=odd.sentence,
            since=sample.taken_at,
            severity=Severity.NOTE if check == UNEVEN else Severity.WARNING,
            evidence=odd.evidence,
            devices=devices,
            ranks=() if process is None else (process.rank_name,),
            job=job.id,
            job_name=job.name,
            subjects=() if odd.device or process is None else (_subject(process),),
            effect=_COLLIDES.format(odd.device, program_of(job.name)) if COLLISION in odd.causes else "",
            causes=odd.causes,
        )


def _names(affected: Sequence[LiveProcess], ranks: Sequence[LiveProcess]) -> str:
    """Return "all 8 ranks", "rank 5" or "3 ranks"."""
    if len(affected) == 1:
        return affected[0].rank_name
    if len(affected) == len(ranks):
        return f"all {len(affected)} ranks"
    if len(affected) <= 3:
        names = ", ".join(process.rank_name.rpartition(" ")[2] for process in affected)
        return f"{affected[0].rank_name.partition(' ')[0]}s {names}"
    are_engines = any(process.serving is not None for process in affected)
    return plural(len(affected), *(("process", "processes") if are_engines else ("rank",)))
