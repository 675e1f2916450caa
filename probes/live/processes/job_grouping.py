"""Which processes are one job, and an id for it that does not change while it runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from probes.base.latest import Latest
from probes.base.unknown import Maybe, Unknown
from probes.facts.jobs.processes import Process, program_of, user_of

_SCHEDULED = (("Slurm job ", "slurm:"), ("pod ", "pod:"), ("container ", "container:"))


class JobIds:
    """Remember the id of each job until its last process has ended."""

    def __init__(self) -> None:
        self._ids: dict[int, tuple[tuple[str, ...], str]] = {}  # group and job id, by pid
        self._answer: Latest[dict[int, str]] = Latest()

    def update(self, processes: Iterable[tuple[int, Process, Maybe[int], int]]) -> dict[int, str]:
        """Return the job id of each process, given as pid, process, rank and parent."""
        asked = list(processes)
        return self._answer.get(lambda: self._updated(asked), values=asked)

    def _updated(self, processes: list[tuple[int, Process, Maybe[int], int]]) -> dict[int, str]:
        groups: dict[tuple[str, ...], list[int]] = {}
        for pid, group in _grouped(processes).items():
            groups.setdefault(group, []).append(pid)
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
        return {pid: name for pid, (_, name) in self._ids.items()}


def _grouped(processes: list[tuple[int, Process, Maybe[int], int]]) -> dict[int, tuple[str, ...]]:
    """Return the group of each process: program, user and job of the scheduler.

    Without a scheduler, two jobs of one user may run the same program. Then ranks occur twice, and the
    processes of each launcher are one job.
    """
    groups = _groups([process for _, process, _, _ in processes])
    ranks = Counter((groups[pid], rank) for pid, _, rank, _ in processes if not isinstance(rank, Unknown))
    twice = {group for (group, _), count in ranks.items() if count > 1}
    found: dict[int, tuple[str, ...]] = {}
    for pid, _, _, parent in processes:
        group = groups[pid]
        found[pid] = (*group, f"{parent}") if group in twice and not group[2] else group
    return found


def _groups(processes: list[Process]) -> dict[int, tuple[str, str, str]]:
    """Return the group of each process; an unknown program of a scheduler's job is its only known one."""
    groups = {process.pid: (program_of(process), user_of(process), process.job) for process in processes}
    named = {groups[process.pid] for process in processes if not isinstance(process.program, Unknown)}
    for process in processes:
        if isinstance(process.program, Unknown):
            _, user, job = groups[process.pid]
            same = [group for group in named if job and group[1:] == (user, job)]
            if len(same) == 1:
                groups[process.pid] = same[0]
    return groups


def _new_id(group: tuple[str, ...], lowest: int, taken: set[str]) -> str:
    program, _, job = group[:3]
    if not (scheduled := scheduler_id(job)):
        return f"pid:{lowest}:{program}"
    if scheduled not in taken:
        return scheduled
    named = f"{scheduled}:{program}"
    return named if named not in taken else f"{named}:{lowest}"


def scheduler_id(job: str) -> str:
    """Return "slurm:4711" for "Slurm job 4711"; "" if no scheduler or container is known."""
    for prefix, short in _SCHEDULED:
        if match := re.match(rf"{prefix}([0-9a-f]{{1,64}})(?![0-9a-f])", job):
            return f"{short}{match[1]}"
    return ""
