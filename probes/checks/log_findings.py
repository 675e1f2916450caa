"""Findings that only the NCCL logs of jobs show, kept in a recording, which has no logs.

Without them, a replay would be greener than its node was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from probes.base.plan import make_plan
from probes.base.unknown import Reason, Unknown, known
from probes.checks.registry import CHECKS, Outcomes, findings_of, run_checks
from probes.host.log_findings import LogFinding
from probes.queries.finding import Evidence, Finding, Outcome, Status, found
from probes.snapshot.examination import Examination

_CAUSE = (
    "The NCCL log of a running job showed it while the node was recorded. The recording has no job logs, so"
    " only the node has the lines."
)


def only_in_logs(examination: Examination, findings: Iterable[Finding]) -> tuple[LogFinding, ...]:
    """Return those of the node's findings that its checks do not find without the logs of jobs."""
    if isinstance(examination.job_logs, Unknown):
        return known(examination.log_findings, ())  # of a recording that is recorded again
    if not examination.job_logs:
        return ()
    present = {finding.id: finding for finding in findings if finding.is_present}
    without = replace(examination, job_logs=Unknown(Reason.NOT_RECORDED, "job logs"))
    again = findings_of(run_checks(without, [check for check in CHECKS if check.id in present]), without)
    kept = {finding.id for finding in again if finding.is_present}
    lost = [finding for name, finding in present.items() if name not in kept]
    return tuple(
        LogFinding(
            finding.id,
            finding.severity,
            finding.devices,
            finding.takes,
            finding.ranks,
            finding.part_of,
            finding.data_path,
        )
        for finding in lost
    )


def with_recorded(outcomes: Outcomes, examination: Examination) -> Outcomes:
    """Return the outcomes with those of a recording whose checks had the logs of jobs on the node."""
    recorded = examination.log_findings
    if isinstance(recorded, Unknown) or not isinstance(examination.job_logs, Unknown):
        return outcomes
    by_id = {finding.id: finding for finding in recorded}
    return tuple((check, _with_recorded(outcome, by_id.get(check.id))) for check, outcome in outcomes)


def _with_recorded(outcome: Outcome, recorded: LogFinding | None) -> Outcome:
    if recorded is None or outcome.status is Status.FOUND:
        return outcome
    return found(
        _CAUSE,
        Evidence("the NCCL logs of the jobs", "found while the node was recorded"),
        fix=make_plan(
            "Check the node itself", f"On the node, run gdrtop check {recorded.id}", needs_root=False
        ),
        severity=recorded.severity,
        devices=recorded.devices,
        data_path=recorded.data_path,
        part_of=(recorded.part_of,) if recorded.part_of else (),
        takes=recorded.takes,
        ranks=recorded.ranks,
        subjects=(),  # the node has compared
    )
