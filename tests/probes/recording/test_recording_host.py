"""A recorded and replayed node has the same facts at every moment."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from probes.base.origin import Source
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.node import Node, probe_node
from probes.host.machine.local import LocalHost
from probes.host.protocol import READ_LIMIT_BYTES, Host
from probes.host.usage import ProcessUsage
from probes.recording.recording_host import Moment, RecordingHost
from probes.recording.redaction.identifiers import Identifiers
from probes.recording.replay_host import ReplayHost
from probes.simulation.host import SimulatedHost
from probes.simulation.node.jobs.processes import FIRST_RANK
from probes.simulation.node.model.description import simulated_names
from probes.snapshot.node_reader import NodeReader
from probes.snapshot.rates import Reading, port_rates
from probes.snapshot.rates import read as take_reading
from probes.snapshot.verdict import assess
from probes.topology.paths import build
from tests.support.pilot import SteppedClock
from tests.support.recordings import archive_of, moments_of, read, recorded
from tests.support.trees import add_function, add_rdma_device, write

NIC = ("pci0000:00", "0000:00:01.0", "0000:01:00.0")


def seen(host: Host, clock: SteppedClock, count: int) -> list[tuple[Node, Reading]]:
    """Return what the probes find, moment by moment."""
    reader, node, found = NodeReader(host), None, []
    for number in range(count):
        if number:
            clock.now += 1.0
            if isinstance(host, ReplayHost):
                host.seek(number)
        node = reader.probe() or node
        assert node is not None
        found.append(
            (replace(node, origin=host.origin._replace(source=Source.LIVE, label="")), reader.read())
        )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", simulated_names())
def test_every_simulated_node_replays_to_the_same_facts(name: str) -> None:
    clock = SteppedClock()
    live = seen(SimulatedHost(name, clock=clock), clock, 4)
    clock.now = 1000.0
    replayed = seen(recorded(SimulatedHost(name, clock=clock), clock, 4), clock, 4)
    for (node, reading), (same_node, same_reading) in zip(live, replayed, strict=True):
        assert same_node == node
        assert same_reading == reading
        assert assess(same_node, build(same_node), same_reading) == assess(node, build(node), reading)


def test_moving_back_shows_the_earlier_figures_again() -> None:
    clock = SteppedClock()
    host = recorded(SimulatedHost("hgx-h100", clock=clock), clock, 5)
    node = probe_node(host)
    forth = [take_at(host, node, moment) for moment in range(5)]
    back = [take_at(host, node, moment) for moment in (4, 3, 2, 1, 0)]
    assert back[::-1] == forth
    assert len({str(reading.gpus) for reading in forth}) == 5


def take_at(host: ReplayHost, node: Node, moment: int) -> Reading:
    host.seek(moment)
    return take_reading(host, node, with_interfaces=True)


class TickingClock(SteppedClock):
    """A clock that advances with every call, as on a real node."""

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def test_rates_use_the_recorded_clock() -> None:
    clock = TickingClock()
    host = SimulatedHost("hgx-h100", clock=clock)
    readings: list[Reading] = []
    moments = []
    recorder = RecordingHost(host, moments.append)
    reader = NodeReader(recorder)
    for _ in range(3):
        clock.now += 1.0
        reader.probe()
        readings.append(reader.read())
        recorder.end_moment()
    replayed = ReplayHost(read(archive_of(moments)))
    node = probe_node(replayed)
    again = [take_at(replayed, node, moment) for moment in range(3)]
    assert again == readings
    assert port_rates(again[0], again[1]) == port_rates(readings[0], readings[1])


def test_missing_answers_are_not_recorded_instead_of_absent() -> None:
    host = recorded(SimulatedHost("gb200", clock=SteppedClock()), SteppedClock())
    asked: list[Callable[[], Maybe[object]]] = [
        lambda: host.read("/sys/of/a/later/version"),
        lambda: host.names("/sys/of/a/later/version"),
        lambda: host.link("/sys/of/a/later/version"),
        lambda: host.resolve("/sys/of/a/later/version"),
        lambda: host.size("/sys/of/a/later/version"),
        lambda: host.access("/sys/of/a/later/version", write=True),
        lambda: host.run(["lspci", "-vvv"]),
        lambda: host.environment("LATER"),
        lambda: host.dmabuf_errnos(["mlx5_99"])["mlx5_99"],
    ]
    for ask in asked:
        answer = ask()
        assert isinstance(answer, Unknown)
        assert answer.reason is Reason.NOT_RECORDED
        assert str(answer) == "not recorded"


def test_errors_keep_their_reasons(tmp_path: Path) -> None:
    add_function(tmp_path, NIC, 0x15B3, 0x1021, 0x020700)
    add_rdma_device(tmp_path, "mlx5_0", NIC)
    write(tmp_path, "sys/huge", "x" * (READ_LIMIT_BYTES + 1))
    moments = []
    recorder = RecordingHost(LocalHost(str(tmp_path)), moments.append)
    asked = [
        lambda host: host.read("/sys/huge"),
        lambda host: host.read("/sys/missing"),
        lambda host: host.names("/sys/huge"),
        lambda host: host.link("/sys/huge"),
        lambda host: host.run(["ibstat"]),
        lambda host: host.nvml(),
        lambda host: host.nvml_live(),
        lambda host: host.dmabuf_errnos(["mlx5_0"])["mlx5_0"],
        lambda host: host.cuda_gpus(),
        lambda host: host.environment("HOME"),
        lambda host: host.access("/sys/missing"),
    ]
    answers = [ask(recorder) for ask in asked]
    recorder.end_moment()
    replayed = ReplayHost(read(archive_of(moments)))
    assert [ask(replayed) for ask in asked] == answers
    assert all(isinstance(answer, Unknown) for answer in answers)


def test_a_hanging_read_is_recorded_as_timed_out() -> None:
    class Stuck(SimulatedHost):
        def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
            recorder.end_moment()  # the moment ends while this is still being read
            return b"late"

    moments = []
    clock = SteppedClock()
    recorder = RecordingHost(Stuck("hgx-h100", clock=clock), moments.append)
    assert recorder.read("/sys/stuck") == "late"
    clock.now += 1.0
    recorder.end_moment()
    host = ReplayHost(read(archive_of(moments)))
    first = host.read("/sys/stuck")
    assert isinstance(first, Unknown)
    assert first.reason is Reason.TIMED_OUT
    host.seek(1)
    assert host.read("/sys/stuck") == "late"


def test_binary_and_unusual_answers_survive(tmp_path: Path) -> None:
    text = "é\n\x1b[2J".encode()
    contents = [b"", b"\0", b"\xff\xfe", text, b"\r\n \t", b"x" * 5000, bytes(range(256)) * 30]
    for number, content in enumerate(contents):
        (tmp_path / f"{number}").write_bytes(content)
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "\udcff\x1b").touch()
    (tmp_path / "link").symlink_to("../\udcfe\x07")
    moments = []
    recorder = RecordingHost(LocalHost(str(tmp_path)), moments.append)
    for number in range(len(contents)):
        recorder.read_bytes(f"/{number}")
    recorder.names("/directory")
    recorder.link("/link")
    recorder.end_moment()
    host = ReplayHost(read(archive_of(moments)))
    assert [host.read_bytes(f"/{number}") for number in range(len(contents))] == contents
    assert host.names("/directory") == ("\udcff\x1b",)
    assert host.link("/link") == "../\udcfe\x07"
    short = host.read_bytes("/5", 100)
    assert isinstance(short, Unknown)
    assert short.reason is Reason.MALFORMED


def test_recording_adds_no_questions() -> None:
    class Counted(SimulatedHost):
        def __init__(self, clock: SteppedClock) -> None:
            super().__init__("hgx-h100", clock=clock)
            self.asked: list[tuple[str, ...]] = []

        def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
            self.asked.append(("file", path))
            return super().read_bytes(path, limit)

        def names(self, path: str) -> Maybe[tuple[str, ...]]:
            self.asked.append(("names", path))
            return super().names(path)

    clock = SteppedClock()
    plain, spied = Counted(clock), Counted(clock)
    for host in (plain, RecordingHost(spied, lambda moment: None)):
        reader = NodeReader(host)
        reader.probe()
        reader.read()
        if isinstance(host, RecordingHost):
            host.end_moment()
    assert sorted(spied.asked) == sorted(plain.asked)


def test_a_faster_dashboard_still_records_one_reading_per_second() -> None:
    clock = SteppedClock()
    moments = []
    recorder = RecordingHost(SimulatedHost("hgx-h100", clock=clock), moments.append)
    reader = NodeReader(recorder)
    readings = []
    for _ in range(30):
        reader.probe()
        readings.append(reader.read())
        recorder.end_moment()
        clock.now += 0.1
    assert len(moments) <= 4
    host = ReplayHost(read(archive_of(moments)))
    node = probe_node(host)
    for moment in range(len(moments)):
        assert take_at(host, node, moment) in readings


def test_only_changes_are_written() -> None:
    clock = SteppedClock()
    first, second = moments_of(SimulatedHost("hgx-h100", clock=clock), clock, 2)
    assert first.probed
    assert not second.probed
    assert len(second.answers) < len(first.answers) / 20


@pytest.mark.parametrize(("source", "marks"), [("live", ["h100-07"]), ("simulated", ["SIMULATED hgx-h100"])])
def test_the_origin_says_what_was_recorded_and_when(source: str, marks: list[str]) -> None:
    clock = SteppedClock()
    moments = moments_of(SimulatedHost("hgx-h100", clock=clock), clock)
    origin = ReplayHost(read(archive_of(moments, "h100-07", source))).origin
    assert origin.source is Source.RECORDED
    for mark in [*marks, "2023-11-14 22:13 UTC"]:
        assert mark in origin.label


def test_the_use_of_processes_and_interfaces_is_recorded() -> None:
    """Redacted, too: user names become tokens, figures stay."""
    moments: list[Moment] = []
    recorder = RecordingHost(SimulatedHost("hgx-h100", clock=SteppedClock()), moments.append)
    usage = recorder.process_usage([FIRST_RANK])[FIRST_RANK]
    counters = recorder.interface_counters(["ens1np0"])["ens1np0"]
    recorder.end_moment()
    host = ReplayHost(read(archive_of(moments)))
    assert host.process_usage([FIRST_RANK])[FIRST_RANK] == usage
    assert host.interface_counters(["ens1np0"])["ens1np0"] == counters
    identifiers = Identifiers(redact=True)
    redacted = ReplayHost(read(archive_of([identifiers.apply(moment) for moment in moments])))
    shown = redacted.process_usage([FIRST_RANK])[FIRST_RANK]
    assert isinstance(usage, ProcessUsage)
    assert shown == replace(usage, user="user-1")
