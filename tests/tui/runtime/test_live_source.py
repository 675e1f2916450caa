"""A node whose NCCL uses a topology file: screens get its paths once the doctor has read it."""

from collections.abc import Iterator

from tests.tui.recordings import read_back

from probes.recording.replay_host import ReplayHost
from probes.simulation.host import SimulatedHost
from tests.nccl_xml import pairs_below_switches
from tui.runtime.live_source import LiveSource
from tui.runtime.replay_source import ReplaySource
from tui.runtime.sampler import Probed, Replayed, Report

DEFAULT = "/var/run/nvidia-topologyd/virtualTopology.xml"


def topologies(reports: Iterator[Report]) -> list[str]:
    """Return the topology files of the nodes that the screens are given, "" for sysfs."""
    whole: list[object] = []
    for report in reports:
        whole.extend(report.reports if isinstance(report, Replayed) else [report])
    files = [report.topology.file for report in whole if isinstance(report, Probed)]
    return ["" if file is None else file.path for file in files]


def with_file() -> SimulatedHost:
    host = SimulatedHost("cloud-vm")
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
    host: ReplayHost = read_back(with_file())
    source = ReplaySource(host)
    assert topologies(source.read(True)) == [""]
    source.examine()
    assert topologies(source.read(False)) == [DEFAULT]
