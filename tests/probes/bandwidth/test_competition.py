"""Who would feel a test: jobs on its GPUs, traffic on its ports, and what cannot be seen."""

from dataclasses import replace

from probes.bandwidth.choice import Choice, MemoryPath, Scope, Setup
from probes.bandwidth.competition import felt_by
from probes.bandwidth.planned import Series
from probes.bandwidth.series import series_of
from probes.examination import Examination, examine
from probes.processes import ProcessFacts
from probes.rates import Reading
from probes.simulation import SimulatedHost
from probes.unknown import Reason, Unknown
from tests.probes.simulation.node import end_job

NO_CONF = Unknown(Reason.NOT_THERE, "/etc/nccl.conf")
BUSY = examine(SimulatedHost("hgx-h100", clock=lambda: 1000.0))


def idle() -> Examination:
    host = SimulatedHost("hgx-h100", clock=lambda: 1000.0)
    end_job(host)
    examination = examine(host)
    live = examination.reading.gpus
    assert not isinstance(live, Unknown)
    still = {
        bdf: replace(one, processes=(), utilisation_percent=0, memory_used_bytes=600 << 20)
        for bdf, one in live.items()
    }
    nobody = ProcessFacts((), 0, 0, NO_CONF)
    return replace(examination, reading=replace(examination.reading, gpus=still), processes=nobody)


def felt(examination: Examination, choice: Choice, before: Reading | None = None) -> str:
    series = series_of(examination, choice, 18515)
    assert isinstance(series, Series)
    return "\n".join(felt_by(examination, series.tests, before))


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


def test_a_job_on_the_gpu_is_named() -> None:
    told = felt(BUSY, Choice())
    assert "GPU0: process 41000 (python3) computes on it" in told
    assert "GPU1" not in told


def test_host_memory_disturbs_no_gpu() -> None:
    assert "GPU" not in felt(BUSY, Choice(memory=MemoryPath.HOST))


def test_the_gpu_at_the_far_end_counts() -> None:
    told = felt(BUSY, Choice(far_nic="mlx5_1"))
    assert "GPU0: process 41000" in told
    assert "GPU1: process 41001" in told


def test_memory_that_somebody_unseen_holds_is_told() -> None:
    examination = idle()
    live = examination.reading.gpus
    assert not isinstance(live, Unknown)
    held = {bdf: replace(one, memory_used_bytes=70 << 30) for bdf, one in live.items()}
    examination = replace(examination, reading=replace(examination.reading, gpus=held))
    assert "GPU0: 70 GiB of its memory are in use, by nobody that is seen from here" in felt(
        examination, Choice()
    )


def test_without_counters_those_who_use_rdma_tell() -> None:
    examination = idle()
    host_memory = Choice(memory=MemoryPath.HOST)
    assert felt(examination, host_memory) == ""
    used = felt(replace(examination, processes=BUSY.processes), host_memory)
    assert "port 1 of mlx5_0: what flows through is not known, and process 41000 (python3)" in used
    unseen = felt(replace(examination, processes=ProcessFacts((), 7, 0, NO_CONF)), host_memory)
    assert "7 processes of others could not be looked into: needs root" in unseen
    lost = Unknown(Reason.IO_ERROR, "/proc")
    assert "nor who uses RDMA" in felt(replace(examination, processes=lost), host_memory)


def test_a_peer_is_not_looked_at_and_that_is_told() -> None:
    told = felt(idle(), Choice(setup=Setup.BOTH_ENDS, peer="root@node2"))
    assert "whether somebody at root@node2 would feel it is not known" in told


def test_an_idle_gpu_is_nobodys() -> None:
    assert felt(idle(), Choice(scope=Scope.SWEEP)) == ""


def test_gpus_that_cannot_be_asked_are_not_taken_for_idle() -> None:
    lost = Unknown(Reason.DRIVER_ERROR, "NVML", "driver/library version mismatch")
    examination = idle()
    examination = replace(examination, reading=replace(examination.reading, gpus=lost))
    assert "is not known: driver error" in felt(examination, Choice())


def test_traffic_on_the_port_is_told() -> None:
    examination = idle()
    told = felt(examination, Choice(), second_before(examination, "mlx5_0", 40.0))
    assert told == "port 1 of mlx5_0: 40 Gb/s of traffic flow through it"
    assert felt(examination, Choice(), second_before(examination, "mlx5_1", 40.0)) == ""
    assert felt(examination, Choice(), second_before(examination, "mlx5_0", 0.001)) == ""


def test_both_ports_of_a_loopback_count() -> None:
    examination = idle()
    told = felt(examination, Choice(far_nic="mlx5_1"), second_before(examination, "mlx5_1", 40.0))
    assert "port 1 of mlx5_1" in told


def test_a_collective_over_the_network_may_take_any_port() -> None:
    examination = idle()
    before = second_before(examination, "mlx5_4", 40.0)
    over = Choice(tool="all_reduce_perf", over_network=True)
    assert "port 1 of mlx5_4" in felt(examination, over, before)
    assert felt(examination, replace(over, nic="mlx5_3"), before) == ""
    assert felt(examination, replace(over, over_network=False), before) == ""


def test_only_so_many_are_named() -> None:
    lines = felt(BUSY, Choice(scope=Scope.MATRIX)).splitlines()
    assert len(lines) == 8
    assert lines[-1].startswith("and ")
