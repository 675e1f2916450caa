"""Errors in the NCCL logs of running jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probes.base.text import plural
from probes.queries.finding import Area, Evidence, Outcome, Severity
from probes.queries.job_logs import conclude_logs, manual_fix, readings_of
from probes.snapshot.examination import Examination

if TYPE_CHECKING:
    from probes.nccl.log.facts import Problem
    from probes.nccl.log.job_log import JobLogReading

AREA = Area("nccl")
# Kinds that stop a job or break a connection; others are only shown on the NCCL screen.
_SERIOUS = frozenset(
    (
        "async-event",
        "register-dmabuf",
        "register-memory-limit",
        "register-memory",
        "create-queue",
        "connect-queue",
        "version-mismatch",
        "proxy-failed",
        "cuda-failure",
        "shared-memory",
        "duplicate-gpu",
        "no-interface",
        "mixed-nics",
        "mnnvl",
        "gid-table",
        "nvls",
        "watchdog-timeout",
        "watchdog-failure",
        "watchdog-ended",
        "torch-error",
    )
)


def _is_serious(problem: Problem) -> bool:
    return problem.kind in _SERIOUS or problem.kind.startswith("completion-")


@AREA.check(
    "job-log-errors",
    Severity.WARNING,
    "A job's NCCL log has errors",
    "NCCL troubleshooting, https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    ok="The jobs' NCCL logs show no errors",
    impact="The job hangs, or ends soon.",
)
def job_log_errors(examination: Examination) -> Outcome:
    """Find errors that stop a job, in the beginning and the end of its logs."""
    affected: list[JobLogReading] = []
    evidence: list[Evidence] = []
    first: Problem | None = None
    for reading in readings_of(examination):
        problems = [problem for problem in reading.facts.problems if _is_serious(problem)]
        if not problems:
            continue
        affected.append(reading)
        first = first or problems[0]
        for problem in problems:
            ranks = f", {', '.join(problem.ranks[:3])}" if problem.ranks else ""
            lines = f" ({plural(problem.seen.count, 'line')}{ranks})"
            evidence.append(Evidence(str(problem.seen.first), f"{problem.title}{lines}"))
    cause = "" if first is None else f"{first.title}. {first.cause}"
    fix = None if first is None else manual_fix("Handle the first error", first.fix.rstrip("."))
    return conclude_logs(examination, affected, cause, evidence, fix)
