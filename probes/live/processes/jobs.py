"""Which processes are one job, its name, and what they do together: rates, NICs, paths."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence

from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.latest import Latest
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.jobs.pods import pod_names
from probes.facts.jobs.processes import Process, job_name, program_of, user_of
from probes.host.probe_thread import start_probe
from probes.host.protocol import Host
from probes.live.model.sample import LiveJob, LiveProcess, PathWord, PortSample, Role

_BY_ROLE = (Role.NCCL, Role.NVSHMEM, Role.UCX, Role.OTHER, Role.PERFTEST, Role.GPU, Role.STORAGE)
_RANKS_NAMED = 3


def jobs_of(processes: Maybe[tuple[LiveProcess, ...]], ports: tuple[PortSample, ...]) -> tuple[LiveJob, ...]:
    """Return the jobs of these processes, NCCL jobs first, those with the most ranks first."""
    members: dict[str, list[LiveProcess]] = {}
    for process in () if isinstance(processes, Unknown) else processes:
        members.setdefault(process.job, []).append(process)
    users = Counter(device for group in members.values() for device in _devices(group))
    jobs = [_job(name, sorted(group, key=_by_rank), ports, users) for name, group in members.items()]
    return tuple(sorted(jobs, key=lambda job: (_BY_ROLE.index(job.role), -len(job.pids), job.id)))


def _by_rank(process: LiveProcess) -> tuple[int, int]:
    return known(process.rank, 1 << 31), process.pid


def _devices(processes: Iterable[LiveProcess]) -> list[str]:
    return sorted({device for process in processes for device in process.ready_nics})


def _job(
    name: str, members: Sequence[LiveProcess], ports: tuple[PortSample, ...], users: Counter[str]
) -> LiveJob:
    devices = _devices(members)
    shared = [device for device in devices if users[device] > 1]
    sizes = [size for process in members if not isinstance(size := process.world_size, Unknown)]
    names = frozenset(devices)
    used = [port for port in ports if port.device in names]
    return LiveJob(
        id=name,
        name=job_name(members[0].process),
        role=min((process.role for process in members), key=_BY_ROLE.index),
        pids=tuple(process.pid for process in members),
        world_size=max(sizes) if sizes else members[0].world_size,
        nics=tuple(devices),
        sent_gbps=_sum([port.sent_gbps for port in used], devices, shared),
        received_gbps=_sum([port.received_gbps for port in used], devices, shared),
        shared_nics=frozenset(shared),
    )


def _sum(rates: Sequence[Maybe[float]], devices: Sequence[str], shared: Sequence[str]) -> Maybe[float]:
    if not devices:
        return Unknown(Reason.NOT_THERE, "rdma resource show qp", "no connected queue pair")
    if shared:
        detail = f"another job also has connected queue pairs on {', '.join(shared[:3])}"
        return Unknown(Reason.NOT_THERE, "rdma resource show qp", detail)
    if not rates:
        return Unknown(Reason.NOT_RECORDED, "ports", "the rates of its NICs are unknown")
    unread = next((rate for rate in rates if isinstance(rate, Unknown)), None)
    return sum(known(rate, 0.0) for rate in rates) if unread is None else unread


@frozen
class PathShare:
    """The members of a job that have one path."""

    first: LiveProcess
    text: str  # "likely GDR (DMA-BUF)"
    where: str  # " on 7 of 8 ranks", " on rank 4 (needs root)"; "" for a job of one process


def path_shares(members: Sequence[LiveProcess]) -> tuple[PathShare, ...]:
    """Return the paths of a job, the most frequent first."""
    groups: dict[str, list[LiveProcess]] = {}
    for process in sorted(members, key=_by_rank):
        # The reasons for unknown paths may differ in figures only.
        is_unknown = process.transfer is None and process.path.word is PathWord.UNKNOWN
        text = process.path.word.value if is_unknown else process.path_text
        groups.setdefault(text, []).append(process)
    are_ranks = all(process.role is Role.NCCL and process.serving is None for process in members)
    noun = "ranks" if are_ranks else "processes"
    shares: list[PathShare] = []
    for text, group in sorted(groups.items(), key=lambda item: -len(item[1])):
        reasons = {process.path.why for process in group if process.transfer is None}
        why = f" ({group[0].path.why})" if len(reasons) == 1 and reasons != {""} else ""
        if len(members) == 1:
            where, text, why = "", group[0].path_text, ""
        elif len(group) == len(members):
            where = f" on all {len(group)} {noun}"
        elif not shares:
            where = f" on {len(group)} of {len(members)} {noun}"
        else:
            where = f" on {_ranks(group)}"
        shares.append(PathShare(group[0], text, where + why))
    return tuple(shares)


def path_summary(members: Sequence[LiveProcess]) -> str:
    """Return the paths of a job: "GDR (DMA-BUF) on 7 of 8 ranks, likely staged on rank 5"."""
    return ", ".join(f"{share.text}{share.where}" for share in path_shares(members))


def _ranks(processes: Sequence[LiveProcess]) -> str:
    ranks = [process.rank for process in processes if not isinstance(process.rank, Unknown)]
    is_known = len(ranks) == len(processes)
    numbers = [str(rank) for rank in ranks] if is_known else [str(process.pid) for process in processes]
    noun = ("rank" if is_known else "pid") + "s" * (len(numbers) > 1)
    if len(numbers) > _RANKS_NAMED:
        return f"{len(numbers)} {noun}"
    return f"{noun} {', '.join(numbers)}"


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
        groups = grouped((group, pid) for pid, group in _grouped(processes).items())
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


COMMAND_SECONDS = 5.0
_MAX_JOBS = 4096  # asked for in one run of gdrtop
_NAME_LIMIT = 64
SLURM_JOB = re.compile(r"Slurm job ([0-9]{1,10})")


class JobNames:
    """Ask `scontrol`, if it is installed, and the kubelet's directory; a sample never waits for them."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._asked: set[str] = set()
        self._queue: deque[str] = deque()
        self._is_missing = False  # scontrol is not installed

    def update(self, host: Host, jobs: Iterable[str]) -> None:
        """Ask for the names of new jobs."""
        for job in sorted(set(jobs) - self._asked):
            if len(self._asked) < _MAX_JOBS and (SLURM_JOB.fullmatch(job) or job.startswith("pod ")):
                self._asked.add(job)
                self._queue.append(job)
        if self._queue:
            start_probe(host, "live job names", lambda: self._work(host))

    def name(self, job: str) -> str:
        """Return "Slurm job 4711 (llama)", or the job as it is if it has no name."""
        name = self._names.get(job)
        return f"{job} ({name})" if name else job

    def _work(self, host: Host) -> Maybe[None]:
        while self._queue:
            job = self._queue.popleft()
            if (match := SLURM_JOB.fullmatch(job)) is None:
                self._names |= pod_names(host)
            elif not self._is_missing:
                output = host.run(("scontrol", "--oneliner", "show", "job", match[1]), COMMAND_SECONDS)
                self._is_missing = isinstance(output, Unknown) and output.reason is Reason.NOT_THERE
                if not isinstance(output, Unknown) and output.exit_status == 0:
                    self._names |= parse_scontrol(output.stdout)
        return None


def parse_scontrol(text: str) -> dict[str, str]:
    """Return the name of each job from `scontrol --oneliner show job`, which prints Name=value pairs."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        job = re.match(r"JobId=([0-9]{1,10}) ", line)
        name = re.search(r" (?:JobName|Name)=(.{1,256}?) (?:UserId|WCKey)=", line)
        if job and name:
            found[f"Slurm job {job[1]}"] = printable(name[1], _NAME_LIMIT)
    return found
