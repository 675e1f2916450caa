"""`gdrtop prolog`: whether a job may start with the GPUs that Slurm gives it, as slurm.conf's Prolog."""

from __future__ import annotations

import argparse
import os
import syslog
from typing import TextIO

from probes.base.origin import Source
from probes.base.text import plural
from probes.checks.judgment import Judgment, judge
from probes.checks.new_jobs import findings_in, rows_against_jobs, rows_for
from probes.queries.jobs import without_jobs
from probes.slurm.slurm_node import JobDevices, devices_of, drain_plan, parse_job, read_gpu_order
from probes.snapshot.examination import Examination, examine
from tui.command_line.arguments import add_arguments
from tui.commands.consumers.contracts import slurm_reason
from tui.commands.slurm.session import Session, add_common_options, described
from tui.launch import SLURMD_SECONDS
from tui.runtime.open_host import open_host

EXIT_NOT_FIT = 1  # slurmd drains the node and requeues the job


def add_options(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser, SLURMD_SECONDS["prolog"])
    add_arguments(
        parser,
        {
            "--heal": "load missing modules if that affects no job, then check again",
            "--log-only": "log what is wrong, change nothing and exit with 0",
            "--no-drain": "leave it to slurmd to drain the node, with its own reason",
        },
    )


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Check the devices of the job, and return the exit status."""
    del out
    job = parse_job(os.environ)
    host = open_host(options)
    session = Session(host, f"prolog, job {job.id or '?'}", options)
    if job.unreadable:
        session.say(f"the job's GPUs cannot be read: {job.unreadable!r} is neither a number nor a UUID")
    if not job.gpus:
        return 0
    with session.time_limit():
        if job.id and not options.dry_run and host.origin.source is Source.LIVE:
            _save_counters(session, job.id)
        examination = without_jobs(examine(host, with_jobs=False))
        judgment = judge(examination)
        order = read_gpu_order(host, os.environ.get("SLURMD_NODENAME", ""))
        devices = devices_of(job, examination, order)
        reason, cause = _wrong_with(devices, examination, judgment)
    if unplaced := devices.unplaced:
        which = f"{plural(len(unplaced), 'GPU')} of the job ({', '.join(unplaced[:4])})"
        session.say(f"{which} cannot be found on this node", syslog.LOG_WARNING)
    heals = reason and options.heal and not options.log_only
    if heals and session.load_modules(examination, judgment.findings):
        with session.time_limit():
            examination = without_jobs(examine(host, with_jobs=False))
            devices = devices_of(job, examination, order)
            reason, cause = _wrong_with(devices, examination, judge(examination))
    if not reason:
        return 0
    if options.log_only:
        session.say(cause, syslog.LOG_ERR)
        return 0
    with session.nothing_fails():  # the job must not start, whatever fails from here on
        session.say(cause, syslog.LOG_ERR)
        if not options.no_drain and not _is_drained(session, examination, reason):
            session.note_undone_drain()
    if options.dry_run:
        session.say(f"would exit with {EXIT_NOT_FIT}: Slurm requeues the job and drains the node")
        return 0
    return EXIT_NOT_FIT


def _is_drained(session: Session, examination: Examination, reason: str) -> bool:
    """Drain the node, unless it has a reason already; return whether slurmd will find it drained."""
    node = session.slurm_node()
    if node is None:
        return False
    is_done = session.carry_out(examination, "drain", drain_plan(node, reason))
    return is_done or node.is_draining or bool(node.reason)


def _wrong_with(devices: JobDevices, examination: Examination, judgment: Judgment) -> tuple[str, str]:
    """Return the reason for Slurm, and the cause, if the job must not start; else two empty texts."""
    rows = rows_for(rows_against_jobs(judgment, {}), examination.topology, (*devices.gpus, *devices.nics))
    findings = findings_in(rows)
    reason = slurm_reason(rows, judgment.verdict)
    cause = described(findings) or judgment.verdict.reason if reason else ""
    if devices.unsure and any(finding.takes or finding.devices for finding in findings):
        cause += f"; which GPUs the job gets is unknown ({devices.unsure}): all that it can get are checked"
        reason += " (order of GPUs unknown)"
    return reason, cause


def _save_counters(session: Session, job: str) -> None:
    """Save the port counters for `gdrtop epilog`."""
    from tui.commands.slurm.epilog import save_counters
    from tui.files.job_file import JobFileError

    with session.nothing_fails():  # the check matters more
        try:
            save_counters(session.host, job)
        except JobFileError as error:
            session.say(str(error), syslog.LOG_WARNING)
