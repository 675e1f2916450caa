"""`gdrtop epilog`: what the ports of this node did during a job, as slurm.conf's Epilog.

The Prolog saves the counters of the ports before the job, and the Epilog compares them.
"""

from __future__ import annotations

import argparse
import io
import os
import syslog
from typing import Any, TextIO, TypedDict

from probes.base.origin import Source
from probes.base.text import plural
from probes.base.unknown import Maybe
from probes.fleet.job_counters import (
    MAX_BYTES,
    CountersError,
    PortDifference,
    compare,
    from_text,
    read_counters,
    to_text,
)
from probes.host.protocol import Host
from probes.host.values import HOSTNAME
from probes.slurm.slurm_node import parse_job
from tui.command_line.arguments import add_arguments
from tui.commands.slurm.session import Session, add_common_options
from tui.files.job_file import MOST_DIFFERENCES, JobFile, JobFileError, differences_directory, save_difference
from tui.files.new_file import shown_path
from tui.launch import SLURMD_SECONDS
from tui.runtime.json_values import document, object_from, write_json
from tui.runtime.open_host import open_host


class JobCountersDocument(TypedDict):
    """`gdrtop epilog`."""

    job: str
    seconds: Maybe[float]  # since the Prolog
    problems: int  # ports that carried little, and counters that grew more than is normal
    note: str  # why nothing can be compared; empty if something can
    ports: tuple[PortDifference, ...]


def save_counters(host: Host, job: str, directory: str | None = None) -> None:
    """Save the counters of now.

    JobFileError: they cannot be saved.
    """
    JobFile(job, directory).save(to_text(read_counters(host, job)))


def difference_since(host: Host, job: str, directory: str | None = None) -> dict[str, Any]:
    """Return the document of what changed since the job began, and delete what was saved.

    JobFileError: nothing was saved, or it cannot be read or deleted.
    """
    file = JobFile(job, directory)
    saved = file.read(MAX_BYTES)
    try:
        begin = from_text(saved, job)
    except CountersError as error:
        raise JobFileError(f"{shown_path(file.path)} cannot be used: {error}; delete it") from None
    end = read_counters(host, job)
    content = object_from(compare(begin, end), JobCountersDocument)
    found = document("job-counters", host.read(HOSTNAME, 4096), host.origin, end.at, content)
    file.delete()
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser, SLURMD_SECONDS["epilog"])
    text = f"save the difference in this directory, of the newest {MOST_DIFFERENCES:,} jobs "
    text += "(default: /var/lib/gdrtop/jobs, without root ~/.local/state/gdrtop/jobs)"
    add_arguments(parser, {"--save DIR": text}, save={"default": ""})


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
