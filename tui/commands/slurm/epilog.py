"""`gdrtop epilog`: what the ports of this node did during a job, as slurm.conf's Epilog."""

from __future__ import annotations

import argparse
import io
import os
import syslog
from typing import TextIO

from probes.base.origin import Source
from probes.base.text import plural
from probes.slurm.slurm_node import parse_job
from tui.commands.slurm.session import Session, add_common_options
from tui.files.job_file import MOST_DIFFERENCES, JobFileError, differences_directory, save_difference
from tui.files.new_file import shown_path
from tui.launch import SLURMD_SECONDS
from tui.runtime.json_values import write_json
from tui.runtime.open_host import open_host

_EPILOG = """\
environment: SLURM_JOB_GPUS or CUDA_VISIBLE_DEVICES and SLURM_JOB_ID, which slurmd sets
What is saved is one JSON document (gdrtop schema job-counters).

exit status: always 0, because Slurm drains a node whose Epilog fails
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add_common_options(parser, SLURMD_SECONDS["epilog"])
    parser.add_argument(
        "--save",
        metavar="DIR",
        default="",
        help=f"save the difference in this directory, of the newest {MOST_DIFFERENCES:,} jobs "
        "(default: /var/lib/gdrtop/jobs, without root ~/.local/state/gdrtop/jobs)",
    )


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Save what changed since the Prolog, and log the problems."""
    job = parse_job(os.environ)
    host = open_host(options)
    session = Session(host, f"epilog, job {job.id or '?'}", options)
    if not job.gpus or not job.id:
        return 0
    if host.origin.source is not Source.LIVE:
        session.say("only the node on which the job ran has its counters")
        return 0
    directory = options.save or differences_directory()
    if options.dry_run:
        session.say(f"would save what the ports did in {shown_path(directory)}")
        return 0
    from tui.commands.slurm.job_counters import difference_since

    try:
        with session.time_limit():
            difference = difference_since(host, job.id)
    except JobFileError as error:
        session.say(str(error), syslog.LOG_WARNING)
        return 0
    text = io.StringIO()
    write_json(difference, text)
    if difference["problems"]:
        problems = plural(difference["problems"], "problem")
        session.say(f"{problems} of the ports, see job-{job.id}.json", syslog.LOG_WARNING)
    try:
        save_difference(directory, job.id, text.getvalue().encode())
    except JobFileError as error:
        session.say(str(error), syslog.LOG_WARNING)
    return 0
