"""What the processes of a job do together: rates, NICs, paths.

Which processes are one job is decided in job_grouping.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.jobs.processes import job_name
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
    """Return the devices with connected queue pairs, each once."""
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
    """Return the rate through all NICs of a job."""
    if not devices:
        return Unknown(Reason.NOT_THERE, "rdma resource show qp", "no connected queue pair")
    if shared:
        detail = f"another job also has connected queue pairs on {', '.join(shared[:3])}"
        return Unknown(Reason.NOT_THERE, "rdma resource show qp", detail)
    if not rates:
        return Unknown(Reason.NOT_RECORDED, "ports", "the rates of its NICs are unknown")
    total = 0.0
    for rate in rates:
        if isinstance(rate, Unknown):
            return rate
        total += rate
    return total


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
        text = process.path.word.value if process.path.word is PathWord.UNKNOWN else process.path.text
        groups.setdefault(text, []).append(process)
    noun = "ranks" if all(process.role is Role.NCCL for process in members) else "processes"
    shares: list[PathShare] = []
    for text, group in sorted(groups.items(), key=lambda item: -len(item[1])):
        reasons = {process.path.why for process in group}
        why = f" ({group[0].path.why})" if reasons != {""} and len(reasons) == 1 else ""
        if len(members) == 1:
            where, text, why = "", group[0].path.text, ""
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
