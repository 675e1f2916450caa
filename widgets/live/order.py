"""The order of the rows in Live's tables: the worst first, or by a column; ties keep that order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from probes.base.evidence import Severity
from probes.base.frozen import frozen
from probes.base.latest import Latest
from probes.base.unknown import Maybe, Unknown
from probes.live.model.sample import LiveProcess, LiveSample
from probes.queries.finding import Finding
from probes.snapshot.condition import Condition

T = TypeVar("T")
Badness: TypeAlias = tuple[int, int]
"""Severity (0: critical), and how many devices or ranks the problem concerns: the fewest come first."""
SortKeys: TypeAlias = Mapping[str, Callable[[T], Maybe[float] | Maybe[str]]]
"""By the name of a column, what its rows are sorted by, the lowest first."""
FINE: Badness = (9, 0)
_SEVERITIES = {Severity.CRITICAL: 0, Severity.WARNING: 1}


def sorted_by_column(rows: Iterable[T], keys: SortKeys[T], sort: str) -> list[T]:
    """Return rows in an order of the configuration, "share" or "-share"; those without a figure are last."""
    key = keys.get(sort.removeprefix("-"))
    if key is None:
        return list(rows)
    figures, others = [], []
    for row in rows:
        value = key(row)
        if isinstance(value, Unknown):
            others.append(row)
        else:
            figures.append((value, row))
    figures.sort(key=lambda pair: pair[0], reverse=sort.startswith("-"))
    return [row for _, row in figures] + others


def falling(value: Maybe[float]) -> Maybe[float]:
    """Return a key that sorts the largest first."""
    return value if isinstance(value, Unknown) else -value


def badness_of_devices(sample: LiveSample) -> Mapping[str, Badness]:
    """Return how bad the worst problem of each device is, by BDF of a GPU or name of an RDMA device."""
    return _problems(sample).devices


def badness_of_process(sample: LiveSample) -> Callable[[LiveProcess], Badness]:
    """Return a function that says how bad the worst problem of a rank, or of its GPUs and NICs, is."""
    problems = _problems(sample)
    names = {job.id: job.name for job in sample.jobs}

    def badness(process: LiveProcess) -> Badness:
        job = names.get(process.job, "")
        devices = (*process.gpus, *process.ready_nics)
        of_devices = (problems.devices.get(device, FINE) for device in devices)
        own = problems.pids.get(process.pid, FINE)
        return min(problems.ranks.get((job, process.rank_name), FINE), own, *of_devices, FINE)

    return badness


def devices_with(sample: LiveSample, *checks: str) -> frozenset[str]:
    """Return the devices that one of these conditions concerns: "network-congested"."""
    found = (condition.devices for condition in sample.watched.conditions if condition.check in checks)
    return frozenset(device for devices in found for device in devices)


@frozen
class _Problems:
    """The worst problem of each device and process, and of each rank by job and name: "rank 5"."""

    devices: Mapping[str, Badness]
    ranks: Mapping[tuple[str, str], Badness]
    pids: Mapping[int, Badness]


_latest: Latest[_Problems] = Latest()


def _problems(sample: LiveSample) -> _Problems:
    """Return the problems of a sample; they seldom differ from those of the sample before."""
    findings, conditions = sample.findings, sample.watched.conditions
    nics = sample.nic_names
    return _latest.get(lambda: _found([*findings, *conditions], nics), objects=(findings, conditions, nics))


def _found(problems: Sequence[Finding | Condition], nics: Mapping[str, str]) -> _Problems:
    devices: dict[str, Badness] = {}
    ranks: dict[tuple[str, str], Badness] = {}
    pids: dict[int, Badness] = {}
    for problem in problems:
        severity = _SEVERITIES.get(problem.severity)
        if severity is None:
            continue
        of_device, of_rank = (severity, len(problem.devices)), (severity, len(problem.ranks))
        for device in (nics.get(device, device) for device in problem.devices):
            devices[device] = min(of_device, devices.get(device, FINE))
        own = problem.pids if isinstance(problem, Finding) else frozenset()
        for pid in own:
            pids[pid] = min((severity, len(own)), pids.get(pid, FINE))
        jobs = problem.jobs if isinstance(problem, Finding) else (problem.job_name,)
        for place in ((job, rank) for job in jobs for rank in problem.ranks):
            ranks[place] = min(of_rank, ranks.get(place, FINE))
    return _Problems(devices, ranks, pids)
