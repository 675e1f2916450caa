"""Settings in the NCCL logs of jobs, compared with the environment of their processes; errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probes.base.text import plural
from probes.nccl.settings import parse_level, parse_number
from probes.queries.finding import Area, Evidence, Outcome, Severity, join_limited, unknown
from probes.queries.job_logs import conclude_logs, environment_is_read, readings_of, settings_of
from probes.queries.jobs import NCCL_VARIABLES, job_plan, jobs_of
from probes.snapshot.condition import OVER_TCP, STAGED
from probes.snapshot.examination import Examination

if TYPE_CHECKING:
    from probes.nccl.log.facts import JobLogReading, Problem, Setting

AREA = Area("nccl", explains=True)
_LEVELS = ("NCCL_NET_GDR_LEVEL", "NCCL_P2P_LEVEL")


@AREA.check(
    "job-log-other-setting",
    Severity.NOTE,
    "A job's NCCL log shows a setting that its environment does not have",
    NCCL_VARIABLES,
    ok="The settings in jobs' NCCL logs match their environment",
    impact="Checks of the environment cannot see what the job really uses.",
    part_of=(STAGED, OVER_TCP),
)
def job_log_other_setting(examination: Examination) -> Outcome:
    """Compare `NCCL_… set by environment to …` with environment and nccl.conf.

    /proc/PID/environ has the environment at the start of the program; what the program sets later is only
    in the log.
    """
    affected: list[JobLogReading] = []
    evidence: list[Evidence] = []
    cause = unread = ""
    for reading in readings_of(examination):
        if not environment_is_read(examination, reading):
            unread = jobs_of(examination).not_known or f"needs the environment of each rank of {reading.name}"
            continue
        values = [settings.values for settings in settings_of(examination, reading)]
        other = []
        for setting in reading.facts.settings:
            given = list(dict.fromkeys(value[setting.name][0] for value in values if setting.name in value))
            if setting.meaning and not any(_is_same(setting, value) for value in given):
                other.append((setting, join_limited(given) or "not set"))
        if not other:
            continue
        affected.append(reading)
        for setting, words in other:
            meaning = f" ({setting.meaning})" if setting.meaning else ""
            evidence.append(Evidence(str(setting.seen.first), f"{setting.name}={setting.value}{meaning}"))
            evidence.append(Evidence("environment", f"{setting.name}: {words}"))
        first, words = other[0]
        said = f"{first.name} is not set" if words == "not set" else f"{first.name}={words}"
        cause = cause or (
            f"The environment says {said}, but the job's log says {first.name}={first.value}. The program "
            "or a library sets it after the program has started."
        )
    if unread and not affected:
        return unknown(unread)
    fix = job_plan("Find what sets the variable", "Search the job's code and its launcher for the variable")
    return conclude_logs(examination, affected, cause, evidence, fix)


def _is_same(setting: Setting, value: str) -> bool:
    """Say whether NCCL reports a value of the environment like this."""
    if setting.name in _LEVELS:
        level, other = parse_level(value), parse_level(setting.value)
        return level is not None and other is not None and level.word == other.word
    if setting.value.lstrip("-").isdecimal():
        return parse_number(value) == int(setting.value)
    return setting.value.rstrip(".") == value.strip().rstrip(".")[:200]


# Kinds that stop a job or break a connection; others are only shown on the NCCL screen.
_SERIOUS = frozenset(
    (
        *("async-event", "proxy-failed", "cuda-failure", "shared-memory", "duplicate-gpu"),
        *("version-mismatch", "register-dmabuf", "register-memory-limit", "register-memory"),
        *("create-queue", "connect-queue", "no-interface", "mixed-nics", "gid-table", "mnnvl", "nvls"),
        *("cumem-host-differs", "efa-security-group", "efa-unreachable", "efa-unresponsive", "efa-gdr"),
        *("diagnostics-p2p-data", "diagnostics-p2p", "diagnostics-pair-failed"),
        *("watchdog-timeout", "watchdog-failure", "watchdog-ended", "torch-error"),
    )
)


@AREA.check(
    "job-log-errors",
    Severity.WARNING,
    "A job's NCCL log has errors",
    "NCCL troubleshooting, https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    ok="The jobs' NCCL logs show no errors",
    impact="The job hangs or will soon end.",
)
def job_log_errors(examination: Examination) -> Outcome:
    """Find errors that stop a job, in the beginning and the end of its logs."""
    affected: list[JobLogReading] = []
    evidence: list[Evidence] = []
    first: Problem | None = None
    for reading in readings_of(examination):
        problems = [
            problem
            for problem in reading.facts.problems
            if not problem.is_note and (problem.kind in _SERIOUS or problem.kind.startswith("completion-"))
        ]
        if not problems:
            continue
        affected.append(reading)
        first = first or problems[0]
        for problem in problems:
            ranks = f", {', '.join(problem.ranks[:3])}" if problem.ranks else ""
            lines = f" ({plural(problem.seen.count, 'line')}{ranks})"
            evidence.append(Evidence(str(problem.seen.first), f"{problem.title}{lines}"))
    cause = "" if first is None else f"{first.title}. {first.cause}"
    fix = None if first is None else job_plan("Fix the first error", first.fix.rstrip("."))
    return conclude_logs(examination, affected, cause, evidence, fix)
