"""NCCL uses a topology file on a live or recorded node: screens get its paths after the examination."""

from collections.abc import Callable, Iterator

from probes.recording.recording_host import Moment, RecordingHost
from probes.recording.replay_host import ReplayHost
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine
from tests.support.nccl_xml import pairs_below_switches
from tests.support.pilot import SteppedClock
from tests.support.recordings import archive_of, read
from tui.runtime.live_source import LiveSource
from tui.runtime.reading_thread import Probed, Replayed, Report
from tui.runtime.replay_source import ReplaySource

DEFAULT = "/var/run/nvidia-topologyd/virtualTopology.xml"


def topologies(reports: Iterator[Report]) -> list[str]:
    """Return the topology files of the nodes that the screens are given, "" for sysfs."""
    whole: list[object] = []
    for report in reports:
        whole.extend(report.reports if isinstance(report, Replayed) else [report])
    files = [report.topology.file for report in whole if isinstance(report, Probed)]
    return ["" if file is None else file.path for file in files]


def with_file(clock: Callable[[], float] = lambda: 1000.0) -> SimulatedHost:
    host = SimulatedHost("cloud-vm", clock=clock)
    host.tree.add(DEFAULT, pairs_below_switches())
    return host


def test_the_paths_follow_the_file_after_the_examination() -> None:
    source = LiveSource(with_file())
    assert topologies(source.read(False)) == [""]
    assert topologies(source.read(False)) == []
    source.examine()
    assert topologies(source.read(False)) == [DEFAULT]
    assert topologies(source.read(False)) == []
    source.examine()
    assert topologies(source.read(False)) == []


def test_a_recording_shows_the_same_paths() -> None:
    clock = SteppedClock()
    moments: list[Moment] = []
    recorder = RecordingHost(with_file(clock), moments.append)
    examine(recorder)
    recorder.note_probe()
    recorder.end_moment()
    source = ReplaySource(ReplayHost(read(archive_of(moments))))
    assert topologies(source.read(True)) == [""]
    source.examine()
    assert topologies(source.read(False)) == [DEFAULT]
