"""Read and judge a node once, with the rates of its jobs: for a report, also one without identifiers."""

from __future__ import annotations

import time
from collections.abc import Callable

from probes.base.frozen import frozen
from probes.base.origin import Origin, Source
from probes.checks.judgment import Judgment, judge
from probes.host.protocol import Host
from probes.live.job_examination import examine_with_jobs
from probes.live.model.sample import LiveSample
from probes.recording.archive import ArchiveWriter, read_archive
from probes.recording.recording_host import Moment, RecordingHost
from probes.recording.redaction.identifiers import Identifiers
from probes.recording.replay_host import ReplayHost
from probes.snapshot.examination import Examination
from tui.runtime.node_monitor import NodeMonitor, read_up_to
from tui.runtime.recorder import manifest_of

_SECONDS = 1.0  # between two readings: rates are the difference


@frozen
class Snapshot:
    """A node at one moment."""

    at: float  # seconds since 1970, the host's clock
    examination: Examination
    judgment: Judgment
    sample: LiveSample | None  # None: a tree of files has no processes


def take_snapshot(host: Host, wait: Callable[[float], object] = time.sleep) -> Snapshot:
    """Read the node twice, one second apart, and judge it; of a recording, the moment that it shows."""
    return _snapshot(host, host, wait)


def watch_for(host: Host, seconds: float, wait: Callable[[float], object] = time.sleep) -> Snapshot:
    """Watch a node for some seconds, and judge what is true at the end."""
    monitor = NodeMonitor(host)
    sample = monitor.read()
    end = sample.at + seconds
    while sample.at < end:
        if monitor.needs_check:
            monitor.check()
        wait(max(0.0, sample.at + _SECONDS - host.monotonic()))
        sample = monitor.read()
    monitor.check()
    return _judged(monitor)


def take_redacted_snapshot(
    host: Host, identifiers: Identifiers, wait: Callable[[float], object] = time.sleep
) -> tuple[Snapshot, Snapshot]:
    """Return the node as it is, and as a redacted recording of the same moment shows it; live stays live.

    `identifiers` knows the identifiers of the node afterwards.
    """
    moments: list[Moment] = []
    recorder = RecordingHost(host, moments.append)
    plain = _snapshot(recorder, host, wait)
    recorder.end_moment()
    redacted = [identifiers.apply(moment) for moment in moments]
    pieces: list[bytes] = []
    writer = ArchiveWriter(pieces.append)
    writer.begin(manifest_of(redacted[0], host.origin, identifiers, open_at=redacted[-1].at))
    for moment in redacted:
        writer.add(moment)
    writer.end(redacted[-1].at, identifiers.counts)
    replay = ReplayHost(read_archive(pieces))
    replay.origin = Origin(host.origin.source, identifiers.label(host.origin.label))
    return plain, _snapshot(replay, replay, wait)


def _snapshot(host: Host, node: Host, wait: Callable[[float], object]) -> Snapshot:
    """Read `node` through `host`, which is the node itself or records it."""
    if host.origin.source is Source.TREE:
        examination = examine_with_jobs(host)
        return Snapshot(host.wall_clock(), examination, judge(examination), None)
    if not isinstance(node, ReplayHost):
        monitor = NodeMonitor(host, settles=False)
        monitor.read()
        _end_moment(host)
        wait(_SECONDS)
        monitor.read()
        monitor.check()
        return _judged(monitor)
    monitor = NodeMonitor(host)
    for _ in read_up_to(monitor, node, node.moment):
        _end_moment(host)
    return _judged(monitor)


def _judged(monitor: NodeMonitor) -> Snapshot:
    assert monitor.examination is not None
    return Snapshot(monitor.host.wall_clock(), monitor.examination, monitor.judgment, monitor.sample)


def _end_moment(host: Host) -> None:
    if isinstance(host, RecordingHost):
        host.end_moment()
