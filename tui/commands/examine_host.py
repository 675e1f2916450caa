"""Examine the host that a command was given, so that every command judges the same facts."""

from __future__ import annotations

from probes.base.origin import Source
from probes.host.protocol import Host
from probes.live.verdict import examine_with_jobs
from probes.snapshot.examination import Examination
from tui.bandwidth.slow_results import with_slow_results


def examine_host(host: Host, seconds: int = 0, before: Examination | None = None) -> Examination:
    """Return one moment of the node with its saved slow results.

    A recording, or a node that is watched for some `seconds`, is examined with what the time before shows.
    `before`: the examination before, of the same command.
    """
    if host.origin.source is not Source.RECORDED and not seconds:
        examination = examine_with_jobs(host, before=before)
    else:
        from tui.runtime.snapshot import take_snapshot, watch_for

        examination = (watch_for(host, seconds) if seconds else take_snapshot(host)).examination
    return with_slow_results(host, examination)
