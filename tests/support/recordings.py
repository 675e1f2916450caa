"""Make and read recordings of any host under a stepped clock."""

from probes.host.protocol import Host
from probes.recording.archive import ArchiveWriter, Manifest, Recording, read_archive
from probes.recording.format import FORMAT_VERSION
from probes.recording.recording_host import Moment, RecordingHost
from probes.recording.replay_host import ReplayHost
from tests.support.pilot import SteppedClock
from tui.runtime.node_monitor import NodeMonitor


def moments_of(host: Host, clock: SteppedClock, count: int = 1, checks: bool = False) -> list[Moment]:
    """Record `count` moments, one second apart; `checks`: with all that the checks read."""
    moments: list[Moment] = []
    recorder = RecordingHost(host, moments.append)
    monitor = NodeMonitor(recorder)
    for number in range(count):
        if number:
            clock.now += 1.0
        monitor.read()
        if checks:
            monitor.check()
        if monitor.is_probed:
            recorder.note_probe()
        recorder.end_moment()
    return moments


def archive_of(
    moments: list[Moment], host: str = "node", source: str = "simulated", label: str = "hgx-h100"
) -> bytes:
    """Return the file's bytes."""
    pieces: list[bytes] = []
    writer = ArchiveWriter(pieces.append)
    writer.begin(Manifest(FORMAT_VERSION, "0", host, moments[0].at, source, label, False))
    for moment in moments:
        assert writer.add(moment)
    writer.end(moments[-1].at, {})
    return b"".join(pieces)


def recorded(host: Host, clock: SteppedClock, count: int = 1, checks: bool = False) -> ReplayHost:
    """Return a host that answers from a recording of `host`."""
    return ReplayHost(read(archive_of(moments_of(host, clock, count, checks))))


def read(content: bytes) -> Recording:
    """Return the recording in the bytes, read in small pieces."""
    return read_archive(content[at : at + 1000] for at in range(0, len(content), 1000))
