"""What the NCCL logs of running jobs say, for checks; and what the environment says beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from probes.base.evidence import Evidence, Severity, first_distinct
from probes.base.plan import Plan
from probes.base.unknown import ABSENT, Unknown
from probes.queries.finding import CheckEnded, Outcome, found, needs, passed, pid_name, unknown
from probes.queries.jobs import JobSettings, jobs_of, need_all_processes, no_fault
from probes.snapshot.examination import Examination

if TYPE_CHECKING:
    from probes.nccl.log.facts import JobLogReading, Place, RankPath

_LOGS = "the NCCL logs of the jobs"
_NEXT_RUN = "no log has lines of a running process; to get them, start the job with NCCL_DEBUG=INFO"


def readings_of(examination: Examination) -> tuple[JobLogReading, ...]:
    """Return the logs in which a running process has written a line of NCCL.

    Raises:
        CheckEnded: there is none. Only checks may call this, because only the registry catches it.
    """
    jobs, readings = jobs_of(examination), examination.job_logs
    if not jobs.processes and not jobs.unseen:
        raise CheckEnded(no_fault(jobs))
    if isinstance(readings, Unknown):
        raise CheckEnded(unknown(jobs.not_known or needs(_LOGS, readings)))
    said = tuple(reading for reading in readings if reading.says_something)
    if not said:
        raise CheckEnded(_without_fault(examination, readings))
    return said


def conclude_logs(
    examination: Examination,
    affected: Sequence[JobLogReading],
    cause: str,
    evidence: Iterable[Evidence],
    fix: Plan | None = None,
    severity: Severity | None = None,
    part_of: tuple[str, ...] = (),
    devices: tuple[str, ...] = (),
    ranks: tuple[str, ...] = (),
    subjects: tuple[frozenset[str], ...] = (),
    title: str = "",
) -> Outcome:
    """Return found if a job is affected; else passed, or unknown if a log could not be read.

    `subjects`: as in Outcome; by default each job.
    """
    if affected:
        text = f"{affected[0].name}: {cause}"
        more = len(affected) - 1
        if more:
            text += f" The same problem affects {more} more job{'s' * (more > 1)}."
        return found(
            text,
            *first_distinct(evidence),
            fix=fix,
            severity=severity,
            part_of=part_of,
            devices=devices,
            ranks=ranks,
            jobs=tuple(dict.fromkeys(reading.name for reading in affected)),
            subjects=subjects or tuple(names_of_ranks(reading, reading.ranks) for reading in affected),
            title=title,
        )
    readings = examination.job_logs
    return _without_fault(examination, () if isinstance(readings, Unknown) else readings)


def names_of_ranks(reading: JobLogReading, ranks: Iterable[RankPath]) -> frozenset[str]:
    """Return the names of a job, and of these ranks with their devices, as in `Outcome.subjects`."""
    ends = ((pid_name(rank.pid), *rank.gpus, *rank.nics) for rank in ranks)
    return frozenset((reading.name, *(name for names in ends for name in names)))


def _without_fault(examination: Examination, readings: tuple[JobLogReading, ...]) -> Outcome:
    if any(reading.needs_root and not reading.says_something for reading in readings):
        return unknown(f"needs root: {_LOGS}")
    watched = examination.watched
    if not isinstance(watched, Unknown):
        need_all_processes(watched)
    said = [reading for reading in readings if reading.says_something]
    if any(reading.is_partial and len(reading.facts.ranks) < len(reading.ranks) for reading in said):
        return unknown(f"needs all of {_LOGS}; time ran out, or they are too long")
    if not said:
        return passed(Evidence(_LOGS, _NEXT_RUN))
    return passed(
        *(Evidence(place_of(reading), f"GPUDirect RDMA: {reading.verdict.text}") for reading in said)
    )


def place_of(reading: JobLogReading) -> str:
    """Return the name of a job's log: "/home/alice/slurm-4711.out and 7 more"."""
    names = list(dict.fromkeys(reading.files)) or [_LOGS]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def line_of(places: Sequence[Place], reading: JobLogReading) -> str:
    """Return the first line that says something, as "FILE:LINE"; without one, the log."""
    return str(places[0]) if places else place_of(reading)


def settings_of(examination: Examination, reading: JobLogReading) -> list[JobSettings]:
    """Return the settings of a job's ranks on this node."""
    pids = {rank.pid for rank in reading.ranks}
    return [settings for process, settings in jobs_of(examination).of_processes if process.pid in pids]


def environment_is_read(examination: Examination, reading: JobLogReading) -> bool:
    """Say whether the settings of all ranks of a job on this node are known."""
    settings = settings_of(examination, reading)
    return len(settings) == len(reading.ranks) and all(
        setting.process is not None
        and not isinstance(setting.process.environment, Unknown)
        and _is_read(setting.process.user_conf)
        and _is_read(setting.process.nccl_conf)
        for setting in settings
    )


def _is_read(conf: object) -> bool:
    return not isinstance(conf, Unknown) or conf.reason in ABSENT


def environment_evidence(
    examination: Examination, reading: JobLogReading, names: Sequence[str]
) -> list[Evidence]:
    """Return where the job's ranks have these variables from, each value once."""
    first: dict[tuple[str, str], Evidence] = {}
    for settings in settings_of(examination, reading):
        for name in names:
            value = settings.get(name)
            if value is not None:
                first.setdefault((name, value), settings.evidence(name))
    return list(first.values())


def environment_sentence(
    examination: Examination, reading: JobLogReading, names: Sequence[str], what: str
) -> str:
    """Return "The environment says NCCL_NET_GDR_LEVEL=SYS.", or that it sets nothing that `what`."""
    set_there = [line.value for line in environment_evidence(examination, reading, names)]
    if set_there:
        return f"The environment says {', '.join(set_there)}."
    if not environment_is_read(examination, reading):
        return "The environment of its processes is unknown (needs root)."
    return f"The environment sets no variable that {what}."
