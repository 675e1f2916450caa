"""The port counters of this node before and after a job: the Prolog saves them, the Epilog compares."""

from __future__ import annotations

from typing import Any, TypedDict

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
from tui.files.job_file import JobFile, JobFileError
from tui.files.new_file import shown_path
from tui.runtime.json_values import document, object_from


class JobCountersDocument(TypedDict):
    """`gdrtop epilog`."""

    job: str
    seconds: Maybe[float]  # since the Prolog
    problems: int  # ports that carried little, and counters that grew more than is normal
    note: str  # why nothing can be compared; empty if something can
    ports: tuple[PortDifference, ...]


def save_counters(host: Host, job: str, directory: str | None = None) -> None:
    """Save the counters of now.

    Raises:
        JobFileError: they cannot be saved.
    """
    JobFile(job, directory).save(to_text(read_counters(host, job)))


def difference_since(host: Host, job: str, directory: str | None = None) -> dict[str, Any]:
    """Return the document of what changed since the job began, and delete what was saved.

    Raises:
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
