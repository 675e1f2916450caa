"""Who would feel a test: jobs on its GPUs, traffic on its ports, and what cannot be seen."""

from dataclasses import replace

from probes.bandwidth.choice import Choice, MemoryPath, Scope
from probes.bandwidth.competition import felt_by
from probes.bandwidth.planned import Series
from probes.bandwidth.series import series_of
from probes.examination import Examination, examine
from probes.rates import Reading
from probes.simulation import SimulatedHost
from probes.unknown import Reason, Unknown
from tests.probes.simulation.node import end_job

BUSY = examine(SimulatedHost("hgx-h100", clock=lambda: 1000.0))


def idle() -> Examination:
    host = SimulatedHost("hgx-h100", clock=lambda: 1000.0)
    end_job(host)
    examination = examine(host)
    live = examination.reading.gpus
    assert not isinstance(live, Unknown)
    still = {bdf: replace(one, processes=(), utilisation_percent=0) for bdf, one in live.items()}
    return replace(examination, reading=replace(examination.reading, gpus=still))


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
    assert felt(BUSY, Choice(memory=MemoryPath.HOST)) == ""


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
    assert len(felt(BUSY, Choice(scope=Scope.MATRIX)).splitlines()) <= 9
