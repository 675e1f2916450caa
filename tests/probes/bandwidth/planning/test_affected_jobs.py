"""Who would feel a test: jobs on its GPUs, traffic on its ports, and what cannot be seen."""

from dataclasses import replace

from probes.bandwidth.model.planned_series import Series
from probes.bandwidth.model.request import MemoryPath, Mode, Request, Scope
from probes.bandwidth.planning.affected_jobs import affected_by
from probes.bandwidth.planning.series import plan_series
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.jobs.processes import Process, ProcessFacts
from probes.facts.rdma.devices import RdmaFacts
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine
from probes.snapshot.rates import Reading
from tests.support.simulated_commands import end_job

NO_CONF = Unknown(Reason.NOT_THERE, "/etc/nccl.conf")
BUSY = examine(SimulatedHost("hgx-h100", clock=lambda: 1000.0))


def idle() -> Examination:
    host = SimulatedHost("hgx-h100", clock=lambda: 1000.0)
    end_job(host)
    examination = examine(host)
    live = examination.reading.gpus
    assert not isinstance(live, Unknown)
    still = {
        bdf: replace(figures, processes=(), utilization_percent=0, memory_used_bytes=600 << 20)
        for bdf, figures in live.items()
    }
    nobody = ProcessFacts((), 0, 0, NO_CONF)
    return replace(examination, reading=replace(examination.reading, gpus=still), processes=nobody)


def felt(examination: Examination, request: Request, before: Reading | None = None) -> str:
    series = plan_series(examination, request, 18515)
    assert isinstance(series, Series)
    return "\n".join(affected_by(examination, series.tests, before))


def second_before(examination: Examination, nic: str, gbps: float) -> Reading:
    """A reading a second before in which a port had moved so much less."""
    reading = examination.reading
    ports = dict(reading.ports)
    for key, counters in ports.items():
        moved = round(gbps * 1e9 / 8) if key[0] == nic else 0
        assert not isinstance(counters.sent_bytes, Unknown)
        sent = counters.sent_bytes - moved
        ports[key] = replace(counters, at=counters.at - 1.0, sent_bytes=sent)
    return replace(reading, at=reading.at - 1.0, ports=ports)


JOB = "python3 (alice, Slurm job 4711"


def holding(examination: Examination, *held: tuple[int, str, tuple[int, ...]]) -> Examination:
    """With these processes: pid, name and the numbers of the verbs devices that they have open."""
    facts = BUSY.processes
    assert not isinstance(facts, Unknown)

    def process(pid: int, name: str, numbers: tuple[int, ...]) -> Process:
        files = tuple(f"/dev/infiniband/uverbs{number}" for number in numbers)
        return replace(facts.processes[0], pid=pid, comm=name, program=name, gpu_files=(), uverbs_files=files)

    return replace(
        examination, processes=ProcessFacts(tuple(process(*holder) for holder in held), 0, 0, NO_CONF)
    )


def on_functions(examination: Examination, **bdfs: Maybe[str]) -> Examination:
    """With RDMA devices on other PCI functions."""
    rdma = examination.node.rdma
    assert isinstance(rdma, RdmaFacts)
    devices = tuple(replace(device, bdf=bdfs.get(device.name, device.bdf)) for device in rdma.devices)
    return replace(examination, node=replace(examination.node, rdma=RdmaFacts(devices)))


def test_a_job_on_the_gpu_is_named() -> None:
    told = felt(BUSY, Request())
    assert "GPU0: used by train.py (alice, Slurm job 4711, pid 41000)" in told
    assert "GPU1" not in told


def test_host_memory_disturbs_no_gpu() -> None:
    assert "GPU" not in felt(BUSY, Request(memory=MemoryPath.HOST))


def test_the_gpu_at_the_far_end_counts() -> None:
    told = felt(BUSY, Request(far_nic="mlx5_1"))
    assert "GPU0: used by train.py (alice, Slurm job 4711, pid 41000)" in told
    assert "GPU1: used by train.py (alice, Slurm job 4711, pid 41001)" in told


def test_memory_that_somebody_unseen_holds_is_told() -> None:
    examination = idle()
    live = examination.reading.gpus
    assert not isinstance(live, Unknown)
    held = {bdf: replace(figures, memory_used_bytes=70 << 30) for bdf, figures in live.items()}
    examination = replace(examination, reading=replace(examination.reading, gpus=held))
    assert "GPU0: 70 GiB of its memory is in use by a process that is not visible here" in felt(
        examination, Request()
    )


def test_without_counters_those_who_use_rdma_tell() -> None:
    examination = idle()
    host_memory = Request(memory=MemoryPath.HOST)
    assert felt(examination, host_memory) == ""
    used = felt(replace(examination, processes=BUSY.processes), host_memory)
    assert "traffic unknown, RDMA is used by train.py (alice, Slurm job 4711, pids 41000," in used
    unseen = felt(replace(examination, processes=ProcessFacts((), 7, 0, NO_CONF)), host_memory)
    assert "7 other processes could not be read (needs root)" in unseen
    init = Unknown(Reason.IO_ERROR, "/proc/1/fd/0", "Permission denied, even for root")
    as_root = replace(examination, processes=ProcessFacts((), 1, 0, NO_CONF, unread=init))
    assert "1 other process could not be read (Permission denied, even for root)" in felt(
        as_root, host_memory
    )
    lost = Unknown(Reason.IO_ERROR, "/proc")
    assert "RDMA users unknown" in felt(replace(examination, processes=lost), host_memory)


def test_a_peer_is_not_looked_at_and_that_is_told() -> None:
    told = felt(idle(), Request(setup=Mode.BOTH_ENDS, peer="root@node2"))
    assert "root@node2: gdrtop does not check which jobs would be affected" in told


def test_an_idle_gpu_is_nobodys() -> None:
    assert felt(idle(), Request(scope=Scope.SWEEP)) == ""


def test_gpus_that_cannot_be_asked_are_not_taken_for_idle() -> None:
    lost = Unknown(Reason.DRIVER_ERROR, "NVML", "driver/library version mismatch")
    examination = idle()
    examination = replace(examination, reading=replace(examination.reading, gpus=lost))
    assert "cannot tell which jobs use the GPUs: driver error" in felt(examination, Request())


def test_traffic_on_the_port_is_told() -> None:
    examination = idle()
    told = felt(examination, Request(), second_before(examination, "mlx5_0", 40.0))
    assert told == "port 1 of mlx5_0: carries 40 Gb/s"
    assert felt(examination, Request(), second_before(examination, "mlx5_1", 40.0)) == ""
    assert felt(examination, Request(), second_before(examination, "mlx5_0", 0.001)) == ""


def test_both_ports_of_a_loopback_count() -> None:
    examination = idle()
    told = felt(examination, Request(far_nic="mlx5_1"), second_before(examination, "mlx5_1", 40.0))
    assert "port 1 of mlx5_1" in told


def test_a_collective_over_the_network_may_take_any_port() -> None:
    examination = idle()
    before = second_before(examination, "mlx5_4", 40.0)
    over = Request(tool="all_reduce_perf", over_network=True)
    assert "port 1 of mlx5_4" in felt(examination, over, before)
    assert felt(examination, replace(over, nic="mlx5_3"), before) == ""
    assert felt(examination, replace(over, over_network=False), before) == ""


def test_only_so_many_are_named() -> None:
    lines = felt(BUSY, Request(scope=Scope.MATRIX)).splitlines()
    assert len(lines) == 8
    assert lines[-1].startswith("and ")


# Who holds a NIC though no traffic flows now


def quiet(examination: Examination, nic: str = "") -> Reading:
    return second_before(examination, nic, 0.0)


def test_a_job_between_two_bursts_is_named_by_what_it_has_open() -> None:
    examination = holding(idle(), *((4242 + rank, "python3", (0, 1)) for rank in range(8)))
    told = felt(examination, Request(memory=MemoryPath.HOST), quiet(examination))
    assert told == f"8 processes have mlx5_0 open ({JOB}, pid 4242) …), though no traffic flows now"
    examination = holding(idle(), (4242, "spdk_tgt", (0,)))
    told = felt(examination, Request(memory=MemoryPath.HOST), quiet(examination))
    assert told == "spdk_tgt (alice, Slurm job 4711, pid 4242) has mlx5_0 open, though no traffic flows now"


def test_who_holds_another_nic_is_not_disturbed() -> None:
    examination = holding(idle(), (4242, "python3", (1, 2)))
    assert felt(examination, Request(), quiet(examination)) == ""
    over = Request(far_nic="mlx5_1")
    assert f"{JOB}, pid 4242) has mlx5_1 open" in felt(examination, over, quiet(examination))


def test_where_traffic_flows_the_holders_are_not_told_as_well() -> None:
    examination = holding(idle(), (4242, "python3", (0,)))
    told = felt(examination, Request(), second_before(examination, "mlx5_0", 40.0))
    assert told == "port 1 of mlx5_0: carries 40 Gb/s"


def test_programs_that_only_watch_are_nobody() -> None:
    examination = holding(
        idle(), (900, "ibacm", (0, 1)), (901, "srp_daemon", (0,)), (902, "nv-hostengine", (0,))
    )
    assert felt(examination, Request(), quiet(examination)) == ""
    assert felt(examination, Request()) == ""


def test_what_gdrtop_has_started_is_nobody() -> None:
    examination = holding(idle(), (4242, "ib_write_bw", (0,)))
    facts = examination.processes
    assert isinstance(facts, ProcessFacts)
    ours = replace(facts, processes=tuple(replace(process, is_ours=True) for process in facts.processes))
    assert felt(replace(examination, processes=ours), Request(), quiet(examination)) == ""


def test_processes_that_may_not_be_looked_into_are_not_asked_for_where_nothing_flows() -> None:
    examination = replace(idle(), processes=ProcessFacts((), 7, 0, NO_CONF))
    assert felt(examination, Request(), quiet(examination)) == ""


# The other functions of a card


def dual_port() -> Examination:
    return on_functions(idle(), mlx5_1="0000:1a:00.1")


def test_traffic_on_the_other_port_of_a_card_is_told() -> None:
    examination = dual_port()
    told = felt(examination, Request(), second_before(examination, "mlx5_1", 90.0))
    assert told == "mlx5_1, on the same card as mlx5_0, carries 90 Gb/s"
    assert felt(examination, Request(), second_before(examination, "mlx5_2", 90.0)) == ""


def test_a_port_of_the_test_itself_is_not_told_twice() -> None:
    examination = dual_port()
    told = felt(examination, Request(far_nic="mlx5_1"), second_before(examination, "mlx5_1", 90.0))
    assert told == "port 1 of mlx5_1: carries 90 Gb/s"


def test_the_second_port_of_one_device_shares_its_card() -> None:
    examination = idle()
    reading = examination.reading
    ports = {**reading.ports, ("mlx5_0", 2): reading.ports["mlx5_0", 1]}
    examination = replace(examination, reading=replace(reading, ports=ports))
    before = quiet(examination)
    busy = second_before(examination, "mlx5_0", 90.0).ports["mlx5_0", 2]
    told = felt(examination, Request(), replace(before, ports={**before.ports, ("mlx5_0", 2): busy}))
    assert told == "port 2 of mlx5_0, on the same card as port 1, carries 90 Gb/s"


def test_who_holds_the_other_port_of_a_card_is_told_once() -> None:
    examination = holding(dual_port(), (4242, "python3", (0, 1)))
    assert felt(examination, Request(), quiet(examination)).splitlines() == [
        f"{JOB}, pid 4242) has mlx5_0 open, though no traffic flows now"
    ]
    examination = holding(dual_port(), (4242, "spdk_tgt", (1,)))
    assert felt(examination, Request(), quiet(examination)).splitlines() == [
        "spdk_tgt (alice, Slurm job 4711, pid 4242) has mlx5_1, on the same card as mlx5_0, open, "
        "though no traffic flows now"
    ]


def test_a_virtual_function_shares_the_card_of_its_physical_function_alone() -> None:
    examination = on_functions(idle(), mlx5_1="0000:1a:01.0")
    assert felt(examination, Request(), second_before(examination, "mlx5_1", 90.0)) == ""
    pci = examination.node.pci
    assert not isinstance(pci, Unknown)
    virtual = replace(pci.functions["0000:1b:00.0"], bdf="0000:1a:01.0", physical_function="0000:1a:00.0")
    functions = {**pci.functions, virtual.bdf: virtual}
    node = replace(examination.node, pci=replace(pci, functions=functions))
    examination = replace(examination, node=node)
    told = felt(examination, Request(), second_before(examination, "mlx5_1", 90.0))
    assert told == "mlx5_1, on the same card as mlx5_0, carries 90 Gb/s"


def test_the_two_connections_of_a_socket_direct_card_have_a_link_each() -> None:
    examination = on_functions(idle(), mlx5_1="0000:9a:00.0")
    assert felt(examination, Request(), second_before(examination, "mlx5_1", 90.0)) == ""


def test_software_devices_are_on_no_card() -> None:
    software = Unknown(Reason.NOT_THERE, "/sys/class/infiniband/rxe0/device")
    examination = on_functions(idle(), mlx5_0=software, mlx5_1=software)
    before = second_before(examination, "mlx5_1", 90.0)
    assert felt(examination, Request(memory=MemoryPath.HOST), before) == ""
