"""Bus bandwidth of ranks: which files are read, what is shown, who is slowest, what a recording keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpu.gpus import DriverFacts, Gpu, GpuFacts, fabric_of
from probes.facts.node import Node
from probes.host.collectives import CollectiveSpeed
from probes.host.protocol import Host
from probes.live.live_sampler import BusBandwidth, slowest
from probes.live.model.sample import LiveProcess
from probes.recording.recording_host import Moment, RecordingHost
from probes.recording.redaction.identifiers import Identifiers
from probes.recording.replay_host import ReplayHost
from tests.support.live_node import LiveNode, node_with
from tests.support.live_samples import a_job, a_process, gpu_bdf
from tests.support.recordings import archive_of, read
from tests.support.trees import link, write

DIRECTORY = "/scratch/alice/inspector"
SETTINGS = {"NCCL_INSPECTOR_ENABLE": "1", "NCCL_INSPECTOR_DUMP_DIR": DIRECTORY}
NOW = 1_700_000_000.0
UUID = "GPU-5b9e4c1f-1c2d-4e5f-8a9b-0c1d2e3f4a5b"


class InspectedNode(LiveNode):
    """A node with a fixed time of day, and inspector files."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.opened: list[str] = []
        write(root, "/proc/sys/kernel/hostname", "trainer-7\n")

    def wall_clock(self) -> float:
        return NOW

    def collectives(self, path: str, user: Maybe[int]) -> Maybe[tuple[CollectiveSpeed, ...]]:
        self.opened.append(path)
        return super().collectives(path, user)

    def add_rank(
        self, number: int, bus: float = 48.0, at: float = NOW, name: str = "", **log: object
    ) -> None:
        pid = a_process(number).pid
        write(self.path, f"/proc/{pid}/status", f"Name:\tpython3\nNSpid:\t{pid}\n")
        link(self.path, f"/proc/{pid}/root", "/")
        link(self.path, f"/proc/{pid}/cwd", "/home/alice")
        path = f"{DIRECTORY}/{name or f'trainer-7-pid{pid}.log'}"
        write(self.path, path, line(number, bus, at, **log))


def line(rank: int = 0, bus: float = 48.0, at: float = NOW, sequence: int = 7, **header: object) -> str:
    return (
        json.dumps(
            {
                "header": {"id": "0xabcdef0123", "rank": rank, "n_ranks": 16, "nnodes": 2, **header},
                "metadata": {"dump_timestamp_us": int(at * 1e6), "hostname": "trainer-7"},
                "coll_perf": {"coll": "AllReduce", "coll_sn": sequence, "coll_busbw_gbs": bus},
            }
        )
        + "\n"
    )


def ranks(count: int = 1, settings: dict[str, str] = SETTINGS) -> tuple[LiveProcess, ...]:
    found = [a_process(number) for number in range(count)]
    return tuple(replace(rank, process=replace(rank.process, environment=settings)) for rank in found)


def node_with_gpu() -> Node:
    no = Unknown(Reason.NOT_THERE)
    gpu = Gpu(0, gpu_bdf(0), "H100", no, no, UUID, no, no, no, no, no, no, no, fabric_of(no), no)
    return replace(node_with(), gpus=GpuFacts(DriverFacts(no, no, no, no, None), (gpu,)))


def updated(
    host: Host, processes: tuple[LiveProcess, ...], bus: BusBandwidth | None = None, now: float = 1.0
) -> tuple[LiveProcess, ...]:
    found = (bus or BusBandwidth()).update(host, node_with_gpu(), processes, now)
    assert not isinstance(found, Unknown)
    return found


@pytest.fixture
def host(tmp_path: Path) -> InspectedNode:
    return InspectedNode(tmp_path)


def why(process: LiveProcess) -> str:
    assert isinstance(process.bus_gbps, Unknown)
    return process.bus_gbps.detail or process.bus_gbps.reason.value


def test_each_rank_has_the_bandwidth_of_its_own_log(host: InspectedNode) -> None:
    host.add_rank(0, 48.0)
    host.add_rank(1, 41.5)
    assert [rank.bus_gbps for rank in updated(host, ranks(2))] == [48.0, 41.5]


def test_no_file_is_opened_of_a_job_without_the_inspector(host: InspectedNode) -> None:
    host.add_rank(0)
    for settings in ({}, {"NCCL_DEBUG": "INFO"}, {**SETTINGS, "NCCL_INSPECTOR_ENABLE": "0"}):
        before = ranks(1, settings)
        assert updated(host, before) == before
    assert not host.opened
    assert not host.asked[f"/proc/4711/root{DIRECTORY}"]


def test_without_the_environment_of_a_job_the_bandwidth_is_unknown_for_that_reason(
    host: InspectedNode,
) -> None:
    host.add_rank(0)
    (process,) = updated(host, (a_process(0),))
    assert why(process) == "needs root"
    assert not host.opened


def test_without_a_directory_it_is_below_the_working_directory(host: InspectedNode) -> None:
    host.add_rank(0)
    write(host.path, "/home/alice/nccl-inspector-815/trainer-7-pid4711.log", line(bus=12.0))
    write(host.path, "/home/alice/nccl-inspector-unknown-jobid/trainer-7-pid4711.log", line(bus=13.0))
    enabled = {"NCCL_INSPECTOR_ENABLE": "1"}
    assert updated(host, ranks(1, {**enabled, "SLURM_JOB_ID": "815"}))[0].bus_gbps == 12.0
    assert updated(host, ranks(1, enabled))[0].bus_gbps == 13.0


def test_in_a_container_the_file_has_the_pid_of_its_namespace(host: InspectedNode) -> None:
    host.add_rank(0, 48.0, name="pod-1-pid17.log")
    write(host.path, "/proc/4711/status", "Name:\tpython3\nNSpid:\t4711\t17\n")
    assert updated(host, ranks())[0].bus_gbps == 48.0


def test_a_directory_that_nodes_share(host: InspectedNode) -> None:
    host.add_rank(0, 48.0)
    write(host.path, f"{DIRECTORY}/trainer-8-pid4711.log", line(bus=10.0))
    write(host.path, f"{DIRECTORY}/trainer-9-pid4711.log", line(bus=11.0))
    assert updated(host, ranks())[0].bus_gbps == 48.0
    (host.path / f"{DIRECTORY[1:]}/trainer-7-pid4711.log").unlink()
    assert why(updated(host, ranks())[0]) == "several files for pid 4711"


@pytest.mark.parametrize("at", [NOW - 121, NOW + 121, 9e12])
def test_figures_of_another_time_are_not_shown_as_those_of_now(host: InspectedNode, at: float) -> None:
    host.add_rank(0, at=at)
    (process,) = updated(host, ranks())
    assert why(process) == "no collective in the last 2 minutes"
    assert process.collectives == ()


def test_the_communicator_with_the_most_nodes_counts(host: InspectedNode) -> None:
    host.add_rank(0, 48.0)
    path = host.path / f"{DIRECTORY[1:]}/trainer-7-pid4711.log"
    path.write_text(line() + line(bus=400.0, id="0x2", n_ranks=8, nnodes=1))
    (process,) = updated(host, ranks())
    assert process.bus_gbps == 48.0
    assert [collective.bus_gbps for collective in process.collectives] == [48.0, 400.0]


def test_files_are_read_every_five_seconds(host: InspectedNode) -> None:
    host.add_rank(0)
    bus, processes = BusBandwidth(), ranks()
    shown = [updated(host, processes, bus, now)[0] for now in (1.0, 2.0, 3.0, 4.0, 5.0)]
    assert len(host.opened) == 1
    assert all(rank is shown[0] for rank in shown)
    updated(host, processes, bus, 6.0)
    assert len(host.opened) == 2


def test_metrics_that_are_being_rewritten_keep_the_previous_values(host: InspectedNode) -> None:
    host.add_rank(0, name="other.txt")
    path = f"{DIRECTORY}/nccl_inspector_metrics_{UUID}.prom"
    text = 'nccl_bus_bandwidth_gbs{comm_name="DP",collective="AllReduce",message_size="1-2GB"} '
    write(host.path, path, f"{text}44\n")
    bus, processes = BusBandwidth(), ranks()
    assert updated(host, processes, bus, 1.0)[0].bus_gbps == 44.0
    write(host.path, path, text)
    assert updated(host, processes, bus, 7.0)[0].bus_gbps == 44.0
    write(host.path, path, f"{text}45\n")
    assert updated(host, processes, bus, 13.0)[0].bus_gbps == 45.0


def test_reasons(host: InspectedNode) -> None:
    assert why(updated(host, ranks())[0]) == "not there"
    host.add_rank(0, name="other.txt")
    assert why(updated(host, ranks())[0]) == "the inspector has written no file for this rank"
    write(host.path, f"{DIRECTORY}/trainer-7-pid4711.log", "")
    assert why(updated(host, ranks())[0]) == "no collective reported yet"


# The slowest rank


def speed(bus: float, sequence: int | None = 7, communicator: str = "0x1", nodes: int = 2) -> CollectiveSpeed:
    return CollectiveSpeed(communicator, "AllReduce", bus, nodes=nodes, sequence=sequence, at=NOW)


def test_the_slowest_rank_of_the_newest_collective_that_all_have_written() -> None:
    found = slowest(
        {
            1: (speed(20.0, 8), speed(48.0, 7)),  # 8 is not written by the others yet
            2: (speed(41.0, 7), speed(90.0, 6)),
            3: (speed(49.0, 7), speed(10.0, 6)),
        }
    )
    assert found is not None
    assert (found.pid, found.bus_gbps, found.others_gbps, found.sequence) == (2, 41.0, 48.5, 7)


def test_no_rank_is_slowest_if_all_are_about_equal_or_cannot_be_compared() -> None:
    assert slowest({}) is None
    assert slowest({1: (speed(5.0),)}) is None
    assert slowest({1: (speed(48.0),), 2: (speed(44.0),)}) is None
    assert slowest({1: (speed(48.0),), 2: (speed(10.0, 8),)}) is None
    assert slowest({1: (speed(48.0, None),), 2: (speed(10.0, None),)}) is None
    assert slowest({1: (speed(48.0),), 2: (speed(10.0, 7, "0x2"),)}) is None


def test_ranks_are_compared_in_the_communicator_of_the_most_nodes() -> None:
    inside = {1: (speed(400.0, 9, "0x2", 1),), 2: (speed(200.0, 9, "0x2", 1),)}
    across = {1: (speed(30.0),), 2: (speed(48.0),)}
    found = slowest({pid: inside[pid] + across[pid] for pid in (1, 2)})
    assert found is not None
    assert (found.pid, found.communicator) == (1, "0x1")


def test_a_job_has_its_slowest_rank(host: InspectedNode) -> None:
    for number in range(4):
        host.add_rank(number, 30.0 if number == 2 else 48.0)
    bus = BusBandwidth()
    updated(host, ranks(4), bus)
    (job,) = bus.with_slowest([a_job(4)], NOW)
    assert job.slowest is not None
    assert job.slowest.pid == 4713
    (later,) = bus.with_slowest([a_job(4)], NOW + 121)
    assert later.slowest is None


# Recordings


@pytest.mark.parametrize("redact", [False, True])
@pytest.mark.parametrize("own_directory", [False, True])
def test_a_recording_shows_the_same_bandwidth(host: InspectedNode, redact: bool, own_directory: bool) -> None:
    host.add_rank(0, 48.0)
    settings = SETTINGS if own_directory else {"NCCL_INSPECTOR_ENABLE": "1", "SLURM_JOB_ID": "4712"}
    write(host.path, "/home/alice/nccl-inspector-4712/trainer-7-pid4711.log", line(bus=48.0))
    moments: list[Moment] = []
    recorder = RecordingHost(host, moments.append)
    environ = "".join(f"{name}={value}\0" for name, value in settings.items())
    write(host.path, "/proc/4711/environ", environ)
    write(host.path, "/proc/4711/comm", "python3")
    recorder.read_bytes("/proc/4711/environ")
    updated(recorder, ranks(1, settings))
    recorder.end_moment()
    identifiers = Identifiers(redact)
    archive = archive_of([identifiers.apply(moment) for moment in moments])
    answers = repr(read(archive).answers)
    for word in ("trainer-7", "alice", "0xabcdef0123"):
        assert not redact or word not in answers
    replayed = ReplayHost(read(archive))
    content = replayed.read_bytes("/proc/4711/environ")
    assert isinstance(content, bytes)
    pairs = dict(item.split("=", 1) for item in content.decode().split("\0") if item)
    (process,) = updated(replayed, ranks(1, pairs))
    assert process.bus_gbps == 48.0
