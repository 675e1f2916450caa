"""`gdrtop health-check`: drain this node while it must get no new jobs, as HealthCheckProgram."""

from __future__ import annotations

import argparse
import syslog
from typing import TextIO

from probes.checks.judgment import judge
from probes.checks.new_jobs import findings_in, rows_against_jobs
from probes.queries.jobs import without_jobs
from probes.slurm.slurm_node import drain_plan, resume_plan
from probes.snapshot.examination import examine
from probes.snapshot.verdict import State
from tui.commands.consumers.contracts import slurm_reason
from tui.commands.slurm.session import Session, add_common_options, described
from tui.launch import SLURMD_SECONDS
from tui.runtime.open_host import open_host


def add_options(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser, SLURMD_SECONDS["health-check"])


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Check the node; drain it, or resume it if gdrtop has drained it."""
    del out
    host = open_host(options)
    session = Session(host, "health check", options)
    with session.time_limit():
        examination = without_jobs(examine(host, with_jobs=False))
        judgment = judge(examination)
    rows = rows_against_jobs(judgment, {})
    reason = slurm_reason(rows, judgment.verdict)
    if not reason and judgment.verdict.state is State.UNKNOWN:
        session.say(f"no verdict: {judgment.verdict.reason}", syslog.LOG_WARNING)
        return 0
    node = session.own_slurm_node()
    if reason:
        session.say(described(findings_in(rows)) or judgment.verdict.reason, syslog.LOG_ERR)
        if node is not None:
            session.carry_out(examination, "drain", drain_plan(node, reason))
    elif node is not None and node.has_own_reason and node.is_draining:
        session.carry_out(examination, "resume", resume_plan(node))
    return 0
