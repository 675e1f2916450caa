"""`gdrtop live --begin JOB` and `--end JOB`: the port counters of this node before and after a job."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from probes.base.origin import Source
from probes.base.text import plural
from probes.base.unknown import known
from probes.fleet.job_counters import (
    MAX_BYTES,
    CountersError,
    JobDifference,
    compare,
    from_text,
    read_counters,
    to_text,
)
from probes.host.protocol import Host
from probes.host.values import HOSTNAME
from tui.commands.arguments import EXIT_WRONG_USAGE, UsageError
from tui.files.job_file import JobFile, JobFileError, is_job_id
from tui.files.new_file import shown_path
from tui.files.xdg import simulated_directory
from tui.runtime.json_values import document, object_of, plain_value, write_json
from tui.runtime.printing import heading_of, print_lines, text_width
from widgets.base.lines import Line, line
from widgets.fleet.job_counters import draw


def begin_job(host: Host, job: str, out: TextIO, ascii_only: bool, directory: str | None = None) -> int:
    """Save the counters of now, and return 0; EXIT_WRONG_USAGE if that fails."""
    _check(host, job)
    counters = read_counters(host, job)
    try:
        file = JobFile(job, directory or _made_up(host))
        file.save(to_text(counters))
    except JobFileError as error:
        return _failed(str(error))
    saved = f"Saved the counters of {plural(len(counters.ports), 'port')} for job {job} in {file.path}"
    print_lines([*_heading(host, counters.at), line(saved)], out, ascii_only)
    return 0


def end_job(
    host: Host, job: str, out: TextIO, ascii_only: bool, as_json: bool, directory: str | None = None
) -> int:
    """Print what changed since the job began, and delete what was saved.

    Return 0, or EXIT_WRONG_USAGE if that fails. Problems do not change the status:
    Slurm drains a node whose epilog fails.
    """
    _check(host, job)
    try:
        file = JobFile(job, directory or _made_up(host))
        content = file.read(MAX_BYTES)
    except JobFileError as error:
        return _failed(str(error))
    try:
        begin = from_text(content, job)
    except CountersError as error:
        return _failed(f"{shown_path(file.path)} cannot be used: {error}; delete it")
    end = read_counters(host, job)
    difference = compare(begin, end)
    if as_json:
        write_json(
            document("job-counters", host.read(HOSTNAME, 4096), host.origin, end.at, _json(difference)), out
        )
    else:
        print_lines([*_heading(host, end.at), *draw(difference, text_width(out))], out, ascii_only)
    try:
        file.delete()
    except JobFileError as error:
        return _failed(str(error))
    return 0


def _made_up(host: Host) -> str | None:
    """Return where the counters of a simulated node are kept, apart from real ones; None: it is real."""
    return simulated_directory(host.origin.label) if host.origin.source is Source.SIMULATED else None


def _heading(host: Host, at: float) -> list[Line]:
    """Return the first line, for what is not about a real node; that of a prolog is its only one."""
    return (
        [] if host.origin.is_running else [heading_of(known(host.read(HOSTNAME, 4096), "?"), host.origin, at)]
    )


def _check(host: Host, job: str) -> None:
    """Raise UsageError if the job ID or the host does not fit."""
    if host.origin.source is Source.RECORDED:
        raise UsageError("--begin and --end read the counters of now; a recording has only those of then")
    if not is_job_id(job):
        raise UsageError(
            f"{job[:80]!r} is not a job ID: letters, digits and ._+- only, at most 64 characters"
        )


def _failed(text: str) -> int:
    print(f"gdrtop: {text}", file=sys.stderr)
    return EXIT_WRONG_USAGE


def _json(difference: JobDifference) -> dict[str, Any]:
    return object_of(
        {
            "job": difference.job,
            "seconds": difference.seconds,
            "problems": difference.problems,
            "note": difference.note,
            "ports": [plain_value(port) for port in difference.ports],
        }
    )
