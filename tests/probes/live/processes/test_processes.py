"""Processes with RDMA resources or a GPU: what is shown of them, and what it costs to look."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpudirect import PeermemReading
from probes.facts.jobs.processes import program_of
from probes.facts.node import Node
from probes.facts.rdma.devices import RdmaFacts
from probes.host.probe_thread import start_probe
from probes.host.rdma_resources import RdmaResources
from probes.live.live_sampler import LiveSampler
from probes.live.model.sample import LiveProcess, Role
from probes.live.processes.processes import ProcessReader, ProcessSnapshot
from probes.simulation.host import SimulatedHost
from probes.snapshot.node_reader import NodeReader
from tests.support.live_node import MIB, THREADS, LiveNode, Samples, joined, node_with, only, resources_of
from tests.support.trees import write

GPU = "0000:18:00.0"
HOST_BUFFERS = [4 * MIB] * 8


@pytest.fixture
def host(tmp_path: Path) -> LiveNode:
    return LiveNode(tmp_path)


def rank(host: LiveNode, pid: int = 42, pinned: int = 0, environ: str = "RANK=3\0WORLD_SIZE=16\0") -> None:
    """Add a rank of NCCL with eight buffers of 4 MiB and a GPU."""
    host.add_process(pid, pinned=pinned, environ=environ)
    host.threads[pid] = THREADS
    host.gpus[GPU] = (*host.gpus.get(GPU, ()), pid)
    parts = [] if not isinstance(host.resources, RdmaResources) else [host.resources]
    host.resources = joined(*parts, resources_of((pid, HOST_BUFFERS)))


def listed(snapshot: ProcessSnapshot) -> tuple[LiveProcess, ...]:
    assert not isinstance(snapshot.processes, Unknown), snapshot
    return snapshot.processes


def test_a_rank_with_its_gpu_nics_and_path(host: LiveNode) -> None:
    rank(host)
    process = only(Samples(host).next())
    assert (process.pid, process.role, process.rank, process.world_size) == (42, Role.NCCL, 3, 16)
    assert process.gpus == (GPU,)
    assert [(nic.device, nic.ready, nic.regions) for nic in process.nics] == [("mlx5_0", 2, 8)]
    assert (process.registered_bytes, process.pinned_bytes) == (32 * MIB, 0)
    assert process.threads == THREADS
    assert process.state == "R"
    assert process.path.text == "likely GDR (DMA-BUF)"
    assert program_of(process.process) == "train.py"
    assert process.process.user == "alice"
    assert process.job == "pid:42:train.py"


def test_two_ranks_are_told_apart(host: LiveNode) -> None:
    rank(host, 42)
    rank(host, 43, pinned=33 * MIB)
    first, second = listed(Samples(host).next())
    assert (first.path.text, second.path.text) == ("likely GDR (DMA-BUF)", "staged")


def test_peermem_of_the_only_job(host: LiveNode) -> None:
    rank(host, pinned=33 * MIB)
    host.peermem = PeermemReading(12, Unknown(Reason.NOT_THERE, "memory_peers"))
    assert only(Samples(host).next()).path.text == "GDR (peermem)"


BUFINFO = "/sys/kernel/debug/dma_buf/bufinfo"
NIC = "0000:19:00.0"


def bufinfo(*functions: str) -> str:
    """Return the list of DMA-BUFs with these functions attached to GPU memory."""
    buffers = "".join(
        "33554432\t00080002\t00080007\t00000003\tnv_dmabuf\t00001234\t\n"
        f"\tAttached Devices:\n\t{bdf}\nTotal 1 devices attached\n\n"
        for bdf in functions
    )
    return f"\nDma-buf Objects:\n{buffers}\nTotal {len(functions)} objects, 33554432 bytes\n"


def attach(host: LiveNode, *functions: str) -> None:
    """List these functions as attached to GPU memory, as root sees it."""
    write(host.path, BUFINFO, bufinfo(*functions))


def node_with_nic() -> Node:
    """Return a node whose NIC has a PCI function."""
    node = node_with()
    assert isinstance(node.rdma, RdmaFacts)
    (device,) = node.rdma.devices
    return replace(node, rdma=RdmaFacts((replace(device, bdf=NIC),)))


def test_bufinfo_proves_dmabuf_of_the_only_process_on_a_nic(host: LiveNode) -> None:
    rank(host)
    attach(host, NIC)
    samples = Samples(host, node_with_nic())
    assert only(samples.next()).path.text == "GDR (DMA-BUF)"
    attach(host)
    assert [only(samples.next()).path.text for _ in range(15)][-1] == "likely GDR (DMA-BUF)"


class RootNode(SimulatedHost):
    """A simulated node as root sees it: each NIC is attached to GPU memory."""

    nics: tuple[str, ...] = ()

    def read_bytes(self, path: str, limit: int = 65536) -> Maybe[bytes]:
        return bufinfo(*self.nics).encode() if path == BUFINFO else super().read_bytes(path, limit)


def test_bufinfo_proves_dmabuf_of_ranks_with_a_nic_each() -> None:
    host = RootNode("hgx-b200", clock=lambda: 1000.0)
    reader = NodeReader(host)
    node = reader.probe()
    assert node is not None
    assert isinstance(node.rdma, RdmaFacts)
    host.nics = tuple(known(device.bdf, "") for device in node.rdma.devices)
    sample = LiveSampler().sample(host, node, reader.read())
    assert not isinstance(sample.processes, Unknown)
    assert [process.path.text for process in sample.processes] == ["GDR (DMA-BUF)"] * 8


def test_bufinfo_is_not_asked_for_a_process_without_a_gpu(host: LiveNode) -> None:
    host.add_process(42)
    host.resources = resources_of((42, HOST_BUFFERS))
    host.gpus[GPU] = ()
    attach(host, NIC)
    Samples(host).next()
    assert host.asked[BUFINFO] == 0


def test_bufinfo_without_a_device_proves_staging(host: LiveNode) -> None:
    """Other pinned memory may hide DMA-BUF regions from the sums, but not from bufinfo."""
    rank(host, pinned=64 * MIB)
    assert only(Samples(host).next()).path.text.startswith("unknown: 64 MiB is pinned")
    attach(host)
    samples = Samples(host)
    assert only(samples.next()).path.text == "staged"
    rank(host, 43, pinned=64 * MIB)
    later = [listed(samples.next()) for _ in range(4)]
    assert {process.path.text for process in later[-1]} == {"staged"}


def test_bufinfo_is_asked_again_for_a_new_process(host: LiveNode) -> None:
    """An answer of before its start may be about a process that has ended."""
    rank(host, 42)
    attach(host, NIC)
    samples = Samples(host)
    samples.next()
    assert host.asked[BUFINFO] == 1
    samples.next()
    assert host.asked[BUFINFO] == 1, "once in ten seconds is enough"
    rank(host, 43)
    for _ in range(4):
        samples.next()
    assert host.asked[BUFINFO] == 2


def test_a_program_with_a_gpu_only(host: LiveNode) -> None:
    host.add_process(50, environ="")
    host.gpus[GPU] = (50,)
    process = only(Samples(host).next())
    assert (process.role, process.path.text, process.nics) == (Role.GPU, "no NIC in use", ())
    assert isinstance(process.rank, Unknown)
    assert process.rank.reason is Reason.NOT_THERE


def test_without_rdma_devices_a_socket_job_is_on_tcp(host: LiveNode) -> None:
    host.add_process(50)
    host.gpus[GPU] = (50,)
    host.threads[50] = ("NCCL SockR 0 0", "python3")
    host.resources = Unknown(Reason.NOT_THERE, "RDMA netlink")
    node = replace(node_with(), rdma=Unknown(Reason.NOT_THERE, "/sys/class/infiniband"))
    snapshot = Samples(host, node).next()
    assert only(snapshot).path.text == "TCP"
    assert snapshot.limits == ()


def test_the_environment_of_others_needs_root(host: LiveNode) -> None:
    rank(host)
    host.denied = ("environ", "maps")
    snapshot = Samples(host).next()
    process = only(snapshot)
    assert isinstance(process.rank, Unknown)
    assert process.rank.reason is Reason.NEEDS_ROOT
    assert process.role is Role.NCCL
    assert "Run as root to see the environment of other users' jobs" in snapshot.limits


def test_monitors_and_gdrtops_own_programs_are_left_out(host: LiveNode) -> None:
    for pid, parent in ((50, 1), (51, 99999), (99999, 1)):
        host.add_process(pid, parent=parent)
    write(host.path, "/proc/50/comm", "nvidia-smi\n")
    host.gpus[GPU] = (50, 51, 99999)
    assert listed(Samples(host).next()) == ()


def test_cpu_use_is_the_difference_between_samples(host: LiveNode) -> None:
    rank(host)
    samples = Samples(host)
    assert isinstance(only(samples.next()).cpu_percent, Unknown)
    host.set_stat(42, "S", ticks=150)
    process = only(samples.next())
    assert (process.cpu_percent, process.state) == (150.0, "S")


def test_a_stopped_process_is_seen_in_the_next_sample(host: LiveNode) -> None:
    rank(host)
    samples = Samples(host)
    samples.next()
    host.set_stat(42, "T")
    assert only(samples.next()).state == "T"


def test_nothing_changed_is_the_same_object(host: LiveNode) -> None:
    rank(host)
    samples = Samples(host)
    samples.next()
    before = only(samples.next())
    for _ in range(5):
        assert only(samples.next()) is before
    host.resources = resources_of((42, [4 * MIB]))
    samples.next(), samples.next()
    assert only(samples.next()).registered_bytes == 4 * MIB


def test_a_process_that_ended_is_gone(host: LiveNode) -> None:
    rank(host)
    samples = Samples(host)
    samples.next()
    host.end(42)
    assert listed(samples.next()) == ()


def test_a_pid_that_is_used_again_is_another_process(host: LiveNode) -> None:
    host.add_process(50)
    host.gpus[GPU] = (50,)
    samples = Samples(host)
    assert program_of(only(samples.next()).process) == "train.py"
    host.add_process(50, program="serve.py", started=900)
    samples.next()
    assert program_of(only(samples.next()).process) == "serve.py"


def test_sources_are_read_every_few_seconds_and_facts_once(host: LiveNode) -> None:
    rank(host)
    samples = Samples(host)
    samples.next(), samples.next()  # new, then known
    host.asked.clear()
    for _ in range(10):
        samples.next()
    assert host.asked["rdma_resources"] == 10  # two for each of five rounds
    assert (host.asked["thread_names"], host.asked["process_usage"]) == (2, 1)
    assert host.asked["/proc/42/environ"] == host.asked["/proc/42/maps"] == host.asked["/proc/42/fd"] == 0


def answer_slowly(host: LiveNode, samples: Samples) -> None:
    """Let each list of RDMA objects take 0.1 s."""
    answer = host.resources

    def slow() -> Maybe[RdmaResources]:
        samples.seconds += 0.1
        assert isinstance(answer, RdmaResources)
        return answer

    host.resources = slow


def test_a_slow_source_is_read_rarely(host: LiveNode) -> None:
    rank(host)
    samples = Samples(host)
    answer_slowly(host, samples)
    for _ in range(30):
        samples.next()
    assert host.asked["rdma_resources"] == 4  # 0.2 s for both lists: every 15 s


def test_a_slow_source_is_read_early_only_while_devices_are_opened_or_closed(host: LiveNode) -> None:
    rank(host)
    samples = Samples(host)
    answer_slowly(host, samples)
    for _ in range(4):
        samples.next()
    assert host.asked["rdma_resources"] == 2
    host.opened += 1
    samples.next()
    assert host.asked["rdma_resources"] == 4
    for _ in range(100):
        samples.next()
    assert host.asked["rdma_resources"] <= 4 + 2 * 3 + 2 * 7  # a tenth of five seconds, then every 15 s


def test_a_gpu_process_of_another_namespace_does_not_make_a_slow_source_be_read_more_often(
    host: LiveNode,
) -> None:
    rank(host)
    host.gpus["0000:10:00.0"] = (77,)  # not in this /proc
    samples = Samples(host)
    answer_slowly(host, samples)
    for _ in range(30):
        samples.next()
    assert host.asked["rdma_resources"] == 4


def test_on_a_busy_node_a_process_that_stops_or_ends_is_seen_in_the_next_sample(host: LiveNode) -> None:
    rank(host)
    samples = Samples(host)
    ticks = count()
    samples.reader = ProcessReader(lambda: samples.seconds, lambda: float(next(ticks)))  # 1 s a reading
    samples.next()
    samples.next()
    host.set_stat(42, "T")
    assert only(samples.next()).state == "T"
    host.end(42)
    assert listed(samples.next()) == ()


def test_a_new_process_is_read_at_once(host: LiveNode) -> None:
    rank(host)
    samples = Samples(host)
    samples.next(), samples.next()
    rank(host, 43)
    assert [process.path.text for process in listed(samples.next())] == ["likely GDR (DMA-BUF)"] * 2


@pytest.mark.slow
def test_5000_other_processes_cost_nothing(tmp_path: Path) -> None:
    def cost(others: int) -> int:
        host = LiveNode(tmp_path / f"{others}")
        rank(host)
        for pid in range(1000, 1000 + others):
            (host.path / f"proc/{pid}").mkdir()
        samples = Samples(host)
        for _ in range(5):
            samples.next()
        assert host.asked["/proc"] == 0
        return host.asked["read"]

    assert cost(5000) == cost(0)


@pytest.mark.slow
def test_at_most_256_processes_are_read(host: LiveNode) -> None:
    for pid in range(1000, 1300):
        host.add_process(pid)
    host.resources = resources_of(*((pid, []) for pid in range(1000, 1300)))
    samples = Samples(host)
    snapshot = samples.next()
    assert len(listed(snapshot)) == 256
    assert "44 more processes use GPUs or RDMA" in snapshot.limits


def test_regions_that_always_change_are_unknown_after_a_while(host: LiveNode) -> None:
    rank(host, pinned=33 * MIB)
    samples = Samples(host)
    assert only(samples.next()).path.text == "staged"
    sizes = iter(range(1, 1000))
    host.resources = lambda: resources_of((42, [*HOST_BUFFERS, next(sizes) * MIB]))
    samples.next(2)
    assert only(samples.next()).path.text == "staged"
    for _ in range(12):
        last = samples.next()
    assert only(last).path.text == "unknown: its memory regions changed while they were read"


@pytest.mark.parametrize(("hidden", "names"), [(None, ""), (("mlx5_0", "mlx5_1"), " (mlx5_0, mlx5_1)")])
def test_namespaces_that_are_not_visible_are_said(
    host: LiveNode, hidden: tuple[str, ...] | None, names: str
) -> None:
    host.add_process(50)
    host.gpus[GPU] = (50,)
    host.resources = RdmaResources(shares_namespaces=False, hidden=hidden)
    snapshot = Samples(host).next()
    why = "unknown: its RDMA devices may be in another network namespace; root on the host can see them"
    assert only(snapshot).path.text == why
    sentence = f"Run as root on the host to see RDMA devices in other network namespaces{names}"
    assert sentence in snapshot.limits


def test_a_process_without_nic_is_sure_where_the_devices_of_all_namespaces_are_listed(host: LiveNode) -> None:
    host.add_process(50)
    host.gpus[GPU] = (50,)
    host.resources = RdmaResources(shares_namespaces=False, hidden=())
    snapshot = Samples(host).next()
    assert only(snapshot).path.text == "no NIC in use"
    assert snapshot.limits == ()


def test_owners_that_are_not_visible_are_said(host: LiveNode) -> None:
    rank(host, pinned=33 * MIB)
    assert isinstance(host.resources, RdmaResources)
    host.resources = joined(host.resources, resources_of((77, [4 * MIB])))
    snapshot = Samples(host).next()
    assert only(snapshot).path.text == "unknown: 1 memory region on this node without a visible owner"
    assert snapshot.limits == (
        "3 RDMA objects have no visible owner: a process that exited, is hidden, or is in another PID "
        "namespace",
    )


def test_processes_of_the_host_are_not_visible_in_a_container(host: LiveNode) -> None:
    host.gpus[GPU] = (4242,)
    snapshot = Samples(host).next()
    assert listed(snapshot) == ()
    assert snapshot.limits == (
        "1 process with a GPU is not visible here: run gdrtop on the host, or as root",
    )


def test_a_rank_of_several_processes_is_that_of_their_parent(host: LiveNode) -> None:
    """Slurm starts one task a node, and the task forks one process for each GPU."""
    for pid in (42, 43):
        rank(host, pid, environ="SLURM_JOB_ID=4711\0SLURM_PROCID=1\0SLURM_NTASKS=2\0")
    for process in listed(Samples(host).next()):
        assert isinstance(process.rank, Unknown)
        assert isinstance(process.world_size, Unknown)


def test_going_back_in_a_recording_reads_again(host: LiveNode) -> None:
    rank(host)
    samples = Samples(host)
    before = only(samples.next(100))
    samples.next()
    after = only(samples.next(-50))
    assert (after.path, after.threads) == (before.path, before.threads)


def test_a_host_that_records_is_asked_everything(tmp_path: Path) -> None:
    first, second = LiveNode(tmp_path / "a"), LiveNode(tmp_path / "b")
    rank(first)
    rank(second)
    samples = Samples(first)
    samples.next()
    samples.host = second
    assert only(samples.next()).path.text == "likely GDR (DMA-BUF)"
    assert second.asked["/proc/42/environ"] == 1


def test_an_old_kernel_is_said(host: LiveNode) -> None:
    rank(host, pinned=33 * MIB)
    snapshot = Samples(host, node_with(version=(5, 4))).next()
    assert only(snapshot).path.text == "unknown: kernel 5.4 does not list DMA-BUF regions"
    assert "Kernel 5.4 may not list DMA-BUF regions; 5.15 and later do" in snapshot.limits


def test_no_list_and_no_gpu_is_unknown(host: LiveNode) -> None:
    host.resources = Unknown(Reason.IO_ERROR, "RDMA netlink")
    snapshot = Samples(host).next()
    assert isinstance(snapshot.processes, Unknown)
    assert snapshot.limits == ("The processes' RDMA resources are unknown: I/O error",)


def test_a_slurm_job_gets_its_name_once(host: LiveNode) -> None:
    rank(host, environ="SLURM_JOB_ID=4711\0SLURM_PROCID=2\0SLURM_NTASKS=8\0")
    host.commands["scontrol"] = "JobId=4711 JobName=llama 70b UserId=alice(1001) GroupId=users(100)\n"
    samples = Samples(host)
    samples.next()
    wait_for_names(host)
    process = only(samples.next())
    assert process.process.job == "Slurm job 4711 (llama 70b)"
    assert (process.job, process.rank, process.world_size) == ("slurm:4711", 2, 8)
    for _ in range(3):
        samples.next()
    assert host.asked["scontrol"] == 1


def test_a_pod_gets_its_name(host: LiveNode) -> None:
    uid = "1b2c3d4e-5f60-4718-9a8b-0c1d2e3f4a5b"
    rank(host)
    write(host.path, "/proc/42/cgroup", f"0::/kubepods/burstable/pod{uid}/{'a' * 64}\n")
    write(host.path, f"/var/log/pods/ml_llama-0_{uid}/main/0.log", "")
    samples = Samples(host)
    samples.next()
    wait_for_names(host)
    process = only(samples.next())
    assert (process.process.job, process.job) == ("pod 1b2c3d4e (ml/llama-0)", "pod:1b2c3d4e")


def test_without_the_commands_nothing_is_asked_again(host: LiveNode) -> None:
    rank(host, 42, environ="SLURM_JOB_ID=1\0")
    rank(host, 43, environ="SLURM_JOB_ID=2\0")
    samples = Samples(host)
    for _ in range(3):
        samples.next()
        wait_for_names(host)
    assert host.asked["scontrol"] == 1


def wait_for_names(host: LiveNode) -> None:
    assert start_probe(host, "live job names", lambda: None).wait(10)  # the running one, if there is one


class Hangs(LiveNode):
    """A node of which one source never answers."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.gate = threading.Event()
        self.hangs = ""

    def rdma_resources(self) -> Maybe[RdmaResources]:
        if self.hangs == "rdma_resources":
            self.gate.wait(60)
        return super().rdma_resources()

    def read_bytes(self, path: str, limit: int = 65536) -> Maybe[bytes]:
        if path == self.hangs:
            self.gate.wait(60)
        return super().read_bytes(path, limit)


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hangs]:
    monkeypatch.setattr("probes.live.model.paced_source.PATIENCE_SECONDS", 0.25)
    monkeypatch.setattr("probes.live.processes.tracked_process.PATIENCE_SECONDS", 0.05)
    host = Hangs(tmp_path)
    yield host
    host.gate.set()


def test_a_source_that_hangs_leaves_the_last_answer(hanging: Hangs) -> None:
    rank(hanging)
    samples = Samples(hanging)
    before = samples.next()
    hanging.hangs = "rdma_resources"
    samples.next(5)
    after = samples.next()
    assert only(after).path == only(before).path
    assert after.limits == ("No response from RDMA resources; the last data is shown",)


def test_a_process_whose_files_hang_delays_only_itself(hanging: Hangs) -> None:
    rank(hanging, 42)
    rank(hanging, 43)
    hanging.hangs = "/proc/42/cmdline"
    samples = Samples(hanging)
    samples.next()
    snapshot = samples.next()
    assert [program_of(process.process) for process in listed(snapshot)] == ["process", "train.py"]
    assert "1 process not read yet" in snapshot.limits


def test_a_simulated_job() -> None:
    seconds = 0.0
    host = SimulatedHost("hgx-h100+job-rank-staged", clock=lambda: seconds)
    reader = NodeReader(host)
    node = reader.probe()
    assert node is not None
    sample = LiveSampler().sample(host, node, reader.read())
    assert not isinstance(sample.processes, Unknown)
    words = [process.path.text for process in sample.processes if process.job == "slurm:4711"]
    assert words == ["likely GDR (DMA-BUF)"] * 5 + ["staged"] + ["likely GDR (DMA-BUF)"] * 2
