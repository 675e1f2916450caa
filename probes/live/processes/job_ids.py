"""Which processes are one job, and an id for it that does not change while it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Unknown
from probes.facts.jobs.processes import Process, program_of, user_of
from probes.live.processes.jobs import scheduler_id


@frozen
class _Member:
    pid: int
    group: tuple[str, ...]


class JobIds:
    """Remember the id of each job until its last process has ended."""

    def __init__(self) -> None:
        self._ids: dict[int, tuple[tuple[str, ...], str]] = {}  # group and job id, by pid
        self._asked: list[tuple[int, Process, Maybe[int], int]] = []
        self._answer: dict[int, str] = {}  # to that

    def update(self, processes: Iterable[tuple[int, Process, Maybe[int], int]]) -> dict[int, str]:
        """Return the job id of each process, given as pid, process, rank and parent."""
        asked = list(processes)
        if asked == self._asked:
            return self._answer
        groups: dict[tuple[str, ...], list[int]] = {}
        for member in _members(asked):
            groups.setdefault(member.group, []).append(member.pid)
        # A group keeps the id that most of its processes have; ids of others are taken.
        kept: dict[tuple[str, ...], str] = {}
        for group, pids in groups.items():
            before = [self._ids[pid][1] for pid in pids if pid in self._ids and self._ids[pid][0] == group]
            if before:
                kept[group] = Counter(before).most_common(1)[0][0]
        taken = set(kept.values())
        for group, pids in sorted(groups.items(), key=lambda item: min(item[1])):
            if group not in kept:
                kept[group] = _new_id(group, min(pids), taken)
                taken.add(kept[group])
        self._ids = {pid: (group, kept[group]) for group, pids in groups.items() for pid in pids}
        self._asked, self._answer = asked, {pid: name for pid, (_, name) in self._ids.items()}
        return self._answer


def _members(processes: list[tuple[int, Process, Maybe[int], int]]) -> list[_Member]:
    """Return each process with its group: program, user and job.

    Without a scheduler, two jobs of one user may run the same program. Then ranks occur twice, and the
    processes of each launcher are one job.
    """
    groups = _groups([process for _, process, _, _ in processes])
    ranks = Counter((groups[pid], rank) for pid, _, rank, _ in processes if not isinstance(rank, Unknown))
    twice = {group for (group, _), count in ranks.items() if count > 1}
    found = []
    for pid, _, _, parent in processes:
        group = groups[pid]
        found.append(_Member(pid, (*group, f"{parent}") if group in twice and not group[2] else group))
    return found


def _groups(processes: list[Process]) -> dict[int, tuple[str, str, str]]:
    """Return the group of each process; an unknown program of a scheduler's job is its only known one."""
    groups = {process.pid: _group(process) for process in processes}
    named = {groups[process.pid] for process in processes if not isinstance(process.program, Unknown)}
    for process in processes:
        if isinstance(process.program, Unknown):
            _, user, job = groups[process.pid]
            same = [group for group in named if job and group[1:] == (user, job)]
            if len(same) == 1:
                groups[process.pid] = same[0]
    return groups


def _group(process: Process) -> tuple[str, str, str]:
    return program_of(process), user_of(process), process.job


def _new_id(group: tuple[str, ...], lowest: int, taken: set[str]) -> str:
    program, _, job = group[:3]
    scheduled = scheduler_id(job)
    if not scheduled:
        return f"pid:{lowest}:{program}"
    if scheduled not in taken:
        return scheduled
    named = f"{scheduled}:{program}"
    return named if named not in taken else f"{named}:{lowest}"
