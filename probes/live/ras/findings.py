"""What RAS's reports say about ranks, in sentences, as conditions, and as events of the timeline.

A rank waits for another if the operation counts of their communicator are unequal and do not move. A count is
what a rank has launched, not what has completed, and a healthy job has unequal counts most of the time. Only
the same unequal counts over several reports show that ranks wait for one that launches nothing. RAS counts no
operations in CUDA graphs, and no send, receive, all-to-all, gather or scatter. Equal counts are not in the
text report, so nothing is said about them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from probes.base.evidence import Evidence, Severity
from probes.base.frozen import frozen
from probes.base.text import plural, printable
from probes.base.unknown import Maybe, Unknown, known
from probes.host.protocol import Host
from probes.live.model.explanations import explained
from probes.live.model.sample import EventKind, LiveEvent, LiveJob, LiveSample, Role
from probes.live.ras.targets import LEAST_INTERVAL_SECONDS, LocalProcesses, local_processes
from probes.nccl.ras import (
    BAD,
    MEANINGS,
    Communicator,
    OperationCounts,
    RasEvent,
    RasProcess,
    RasRank,
    RasReport,
    RasSet,
    parse_event,
)
from probes.snapshot.condition import RAS_PROBLEM, Condition

_RUNNING = "RUNNING"
_Counts = tuple[tuple[str, tuple[tuple[str, int, tuple[int, ...]], ...]], ...]


@frozen
class Behind:
    """Ranks of a stalled communicator that have launched the fewest operations."""

    fewer: int  # operations, than the ranks that have launched the most
    count: int  # number of ranks
    ranks: tuple[RasRank, ...]  # () if RAS does not name them


@frozen
class Stall:
    """A communicator in which nothing has moved, with unequal counts."""

    hash: str
    seconds: float  # between the first and the last report with these counts
    reports: int
    behind: Behind


@dataclass
class _Series:
    """Reports in a row with the same counts of a communicator."""

    counts: _Counts
    began_at: float
    latest_at: float
    reports: int
    behind: Behind | None


class RasHistory:
    """Reports of one port over time."""

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}

    def add(self, report: RasReport, at: float, is_one_job: bool) -> tuple[Stall, ...]:
        """Add a complete report and return the stalls in it, the longest one first.

        `at`: seconds of a clock that never goes back. Without `is_one_job`, another job may have answered,
        and a communicator that is missing in the report may be unchanged.
        """
        if not report.is_complete:
            return ()
        seen: dict[str, _Series] = {}
        for communicator in report.communicators:
            if not communicator.counts or not _is_running(report, communicator):
                continue
            # What must stay the same, in an order that does not depend on the report's.
            values = (
                (each.operation, tuple(sorted(map(_values, each.sets)))) for each in communicator.counts
            )
            counts = tuple(sorted(values))
            series = self._series.get(communicator.hash)
            if series is None or series.counts != counts or at < series.latest_at:
                series = _Series(counts, at, at, 0, _behind(communicator.counts))
            series.latest_at, series.reports = at, series.reports + 1
            seen[communicator.hash] = series
        changed = {communicator.hash for communicator in report.communicators} - set(seen)
        kept = {} if is_one_job else {key: past for key, past in self._series.items() if key not in changed}
        self._series = {**kept, **seen}
        stalls = (
            Stall(key, past.latest_at - past.began_at, past.reports, past.behind)
            for key, past in seen.items()
            if past.behind is not None
            and past.reports > 1
            and past.latest_at - past.began_at >= LEAST_INTERVAL_SECONDS
        )
        return tuple(sorted(stalls, key=lambda stall: (-stall.seconds, -stall.behind.fewer)))


def _is_running(report: RasReport, communicator: Communicator) -> bool:
    """Return whether all ranks are initialized and not being destroyed; errors and missing ranks say more."""
    number = communicator.name.partition("-")[0]
    group = next((group for group in report.groups if str(group.number) == number), None)
    return group is not None and group.status == _RUNNING and not communicator.statuses


def _values(counted: RasSet) -> tuple[str, int, tuple[int, ...]]:
    return counted.value, counted.count, tuple(sorted(rank.rank for rank in counted.ranks))


def _behind(all_counts: tuple[OperationCounts, ...]) -> Behind | None:
    """Return the ranks that are the furthest behind, over all types of operations."""
    fewer: dict[int, int] = {}
    names: dict[int, RasRank] = {}
    largest: Behind | None = None
    for counts in all_counts:
        most = max(counts.counts)
        lowest = min(counts.sets, key=lambda counted: int(counted.value))
        gap = most - int(lowest.value)
        if gap and (largest is None or gap > largest.fewer):
            largest = Behind(gap, lowest.count, lowest.ranks)
        for problem in counts.sets:
            for rank in problem.ranks:
                names.setdefault(rank.rank, rank)
                fewer[rank.rank] = fewer.get(rank.rank, 0) + most - int(problem.value)
    # A set that RAS does not name may be further behind than all ranks that it names.
    if largest is None or not largest.ranks or not fewer:
        return largest
    most_behind = max(fewer.values())
    ranks = tuple(names[rank] for rank in sorted(fewer) if fewer[rank] == most_behind)
    return Behind(most_behind, len(ranks), ranks)


def unequal_counts(report: RasReport, local: LocalProcesses) -> tuple[RasFinding, ...]:
    """Return the ranks that are behind in one report: of a job that moves no data, they are suspects."""
    found = []
    for communicator in report.communicators if report.is_complete else ():
        if not communicator.counts or not _is_running(report, communicator):
            continue
        if (behind := _behind(communicator.counts)) is not None:
            who = _ranks(behind.ranks, behind.count, communicator.hash, local)
            has = "has" if behind.count == 1 else "have"
            text = f"{who} {has} launched {plural(behind.fewer, 'collective')} fewer than the others"
            found.append(RasFinding(Severity.NOTE, text, _pid(behind.ranks, local)))
    return tuple(found)


CONFIRMED_SECONDS = 60.0  # until then, a long computation step is as likely
_NAMED = 4
_DEAD = (
    "RAS never queries such a process again. Check whether it has exited or is stopped, or its node is down."
)
_SILENT = "Its RAS thread does not respond: the process is stopped or has exited, or its network is down."
_BEHIND = (
    "The other ranks wait for it. Look at what this process does: data loading, a checkpoint, an exception,"
    " or a different order of collectives."
)


@frozen
class RasFinding:
    """One sentence, without a period, and which process of this node it is about."""

    severity: Severity
    text: str
    pid: int | None = None  # None: on another node, or not one process
    explanation: str = ""


def conditions_of(
    found: Sequence[RasFinding], at: float, address: str, jobs: Sequence[LiveJob]
) -> tuple[Condition, ...]:
    """Return what RAS has found as conditions of these jobs; `at`: seconds since 1970."""
    conditions = []
    for number, finding in enumerate(found):
        job = next((job for job in jobs if finding.pid in job.pids), jobs[0] if len(jobs) == 1 else None)
        evidence = (Evidence(f"NCCL RAS at {address}", finding.text),)
        ranks = () if finding.pid is None else (f"pid {finding.pid}",)
        about = ("", "", ()) if job is None else (job.id, job.name, (job.subject,))
        subject = f"{address} {number}"
        conditions.append(
            Condition(RAS_PROBLEM, subject, finding.text, at, finding.severity, evidence, (), ranks, *about)
        )
    return tuple(conditions)


def findings(report: RasReport, stalls: Sequence[Stall], local: LocalProcesses) -> tuple[RasFinding, ...]:
    """Return what is wrong, the worst first."""
    critical = Severity.CRITICAL
    found: list[RasFinding] = []
    for process in report.dead:
        text = f"{_process(process, local)} is considered dead: it has not responded to RAS for 60 s"
        found.append(RasFinding(critical, text, _local_pid(process, local), _DEAD))
    for process in report.missing:
        live = local.find(process)
        stopped = "; it is stopped" if live is not None and live.is_stopped else ""
        text = f"{_process(process, local)} does not respond to RAS{stopped}"
        found.append(RasFinding(critical, text, _local_pid(process, local), _SILENT))
    for count, named, what in (
        (report.dead_count, report.dead, "considered dead by RAS"),
        (report.missing_count, report.missing, "not responding to RAS"),
    ):
        rest = count - len(named)
        if rest > 0:
            text = f"{rest} {'more ' if named else ''}process{'es are' if rest > 1 else ' is'} {what}"
            found.append(RasFinding(critical, text, None, "gdrtop ras --verbose may list them"))
    for communicator in report.communicators:
        for errors in communicator.errors:
            text = f"{_ranks(errors.ranks, errors.count, communicator.hash, local)} reported: {errors.value}"
            found.append(RasFinding(critical, text, _pid(errors.ranks, local)))
    # The ranks that are behind in one communicator make others wait in the next.
    for stall in stalls:
        behind = stall.behind
        who = _ranks(behind.ranks, behind.count, stall.hash, local)
        launched = (
            f"{'has' if behind.count == 1 else 'have'} launched {plural(behind.fewer, 'fewer collective')}"
        )
        text = f"{who} {launched} and nothing has moved for {stall.seconds:.0f} s"
        severity = critical if stall.seconds >= CONFIRMED_SECONDS else Severity.WARNING
        found.append(RasFinding(severity, text, _pid(behind.ranks, local), _BEHIND))
    order = list(Severity)
    distinct: dict[str, RasFinding] = {}
    for finding in sorted(found, key=lambda finding: order.index(finding.severity)):
        distinct.setdefault(finding.text, finding)
    return tuple(distinct.values())


def _ranks(ranks: Sequence[RasRank], count: int, communicator: str, local: LocalProcesses) -> str:
    if not ranks:
        return f"{'a rank' if count == 1 else f'{count} ranks'} of communicator {communicator}"
    names = []
    for rank in ranks[:_NAMED]:
        if (live := local.find(rank.process)) is not None:
            names.append(local.text(live))
        elif isinstance(rank.process, Unknown):
            names.append(f"rank {rank.rank} of communicator {communicator}")
        else:
            names.append(f"rank {rank.rank} of communicator {communicator} ({_place(rank.process)})")
    rest = max(count, len(ranks)) - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest > 0 else "")


def _process(process: RasProcess, local: LocalProcesses) -> str:
    live = local.find(process)
    return f"a process ({_place(process)})" if live is None else local.text(live)


def _place(process: RasProcess) -> str:
    gpus = ", ".join(f"GPU{number}" for number in process.nvml[:8])
    return f"pid {process.pid} on node {process.node}{', ' if gpus else ''}{gpus}"


def _local_pid(process: Maybe[RasProcess], local: LocalProcesses) -> int | None:
    live = local.find(process)
    return None if live is None else live.pid


def _pid(ranks: Sequence[RasRank], local: LocalProcesses) -> int | None:
    return _local_pid(ranks[0].process, local) if len(ranks) == 1 else None


# RAS events of a job as events of the timeline, while the user follows them.

_MOST_EVENTS = 50  # of one sample
_ROUTINE = ("PEER_CONNECTING", "PEER_CONNECTED")


class RasEvents:
    """The subscriptions; `update` is called in one thread, the others may be called from any."""

    def __init__(self, recorded: Iterable[str] = ()) -> None:
        """Follow nothing yet, or the addresses that a recording has events of."""
        self._addresses: tuple[str, ...] = tuple(recorded)
        self._is_recorded = bool(self._addresses)
        self._first: tuple[str, ...] = ()
        self._news: list[str] = []
        self._on_end: Callable[[], object] = bool
        self._lock = threading.Lock()

    @property
    def is_on(self) -> bool:
        """Return whether events are followed."""
        return bool(self._addresses)

    def follow(self, address: str, first: tuple[str, ...] = (), on_end: Callable[[], object] = bool) -> None:
        """Follow an address from its `first` events on; `on_end` is called when the subscription ends."""
        with self._lock:
            self._addresses, self._first, self._on_end = (address,), first, on_end
            self._news.append("gdrtop now follows RAS events")

    def stop(self, host: Host) -> bool:
        """End the subscription, if there is one; return whether there was."""
        with self._lock:
            addresses, self._addresses = self._addresses, ()
            for address in addresses:
                host.ras_events(address, last=True)
            if addresses:
                self._on_end()
                self._news.append("gdrtop no longer follows RAS events")
        return bool(addresses)

    def update(self, host: Host, sample: LiveSample) -> list[LiveEvent]:
        """Return what is new; a subscription that has ended is one event."""
        with self._lock:
            lines, self._first = list(self._first), ()
            for address in self._addresses:
                events = host.ras_events(address)
                if not isinstance(events, Unknown):
                    lines += events
                elif not self._is_recorded:
                    host.ras_events(address, last=True)
                    self._on_end()
                    self._addresses = ()
                    self._news.append(f"RAS events stopped: {events.detail or events}")
            news, self._news = self._news, []
        found = [_switch(sample, text) for text in news]
        if lines:
            found += _events(lines, host, sample)
        return found


def _switch(sample: LiveSample, text: str) -> LiveEvent:
    return explained(sample.taken_at, EventKind.RAS_EVENTS, Severity.NOTE, "RAS", printable(text, 300))


def _events(lines: list[str], host: Host, sample: LiveSample) -> list[LiveEvent]:
    parsed = [event for event in map(parse_event, lines) if event is not None and event.kind not in _ROUTINE]
    pids = [process.pid for process in known(sample.processes, ()) if process.role is Role.NCCL]
    local = local_processes(host, sample, pids)
    found = [_event(event, local, sample) for event in parsed[:_MOST_EVENTS]]
    if len(parsed) > _MOST_EVENTS:
        found.append(_switch(sample, f"{len(parsed) - _MOST_EVENTS} more RAS events are not listed"))
    return found


def _event(event: RasEvent, local: LocalProcesses, sample: LiveSample) -> LiveEvent:
    live = local.find(event.process)
    subject, who = "RAS", "a process"
    if live is not None:
        subject, who = f"pid {live.pid}", local.text(live)
    elif not isinstance(event.process, Unknown):
        who = f"pid {event.process.pid} on node {event.process.node}"
    meaning = MEANINGS.get(event.kind, f"{event.kind} {event.details}".strip())
    severity = Severity.WARNING if event.kind in BAD else Severity.NOTE
    if event.kind == "PEER_DEAD":
        severity = Severity.CRITICAL
    text = printable(f"{who} {meaning}", 300)
    return explained(sample.taken_at, EventKind.RAS_PEER, severity, subject, text)
