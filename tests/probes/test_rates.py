import shutil
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from probes.gpudirect import PeermemReading
from probes.history import History
from probes.host import LocalHost
from probes.node import probe_node
from probes.rates import PortCounters, Reading, port_rates, read
from probes.unknown import Maybe, Reason, Unknown
from tests.trees import add_rdma_device, write

ABSENT = Unknown(Reason.NOT_THERE)
PORT = ("mlx5_0", 1)


def reading(at: float, sent: Maybe[int], received: Maybe[int]) -> Reading:
    return Reading(
        at, {PORT: PortCounters(at, sent, received)}, ABSENT, PeermemReading(ABSENT, ABSENT), {}, {}
    )


def test_rates_are_bits_over_the_time_between() -> None:
    rate = port_rates(reading(10, 0, 0), reading(12, 100_000_000_000, 50_000_000_000))[PORT]
    assert (rate.sent_gbps, rate.received_gbps) == (400.0, 200.0)


def test_a_counter_that_went_back_is_unknown_not_zero() -> None:
    rate = port_rates(reading(10, 100, 100), reading(11, 50, 200))[PORT]
    assert isinstance(rate.sent_gbps, Unknown)
    assert not isinstance(rate.received_gbps, Unknown)


def test_a_counter_that_was_not_read_is_unknown() -> None:
    rate = port_rates(reading(10, ABSENT, 1), reading(11, 5, ABSENT))[PORT]
    assert isinstance(rate.sent_gbps, Unknown)
    assert isinstance(rate.received_gbps, Unknown)


def test_no_time_between_gives_no_rate() -> None:
    assert isinstance(port_rates(reading(10, 1, 1), reading(10, 2, 2))[PORT].sent_gbps, Unknown)


def test_counters_are_units_of_four_octets(tmp_path: Path) -> None:
    add_rdma_device(tmp_path, "mlx5_0")
    write(tmp_path, "/sys/module/nvidia_peermem/refcnt", "7\n")
    host = LocalHost(str(tmp_path))
    now = read(host, probe_node(host))
    assert now.ports[PORT].sent_bytes == 4000
    assert now.ports[PORT].received_bytes == 8000
    assert now.port_states[PORT] == "ACTIVE"
    assert now.peermem.refcnt == 7


def test_a_device_that_went_away_between_probe_and_reading(tmp_path: Path) -> None:
    add_rdma_device(tmp_path, "mlx5_0")
    host = LocalHost(str(tmp_path))
    node = probe_node(host)
    (tmp_path / "sys/class/infiniband/mlx5_0").unlink()
    shutil.rmtree(tmp_path / "sys/devices/virtual/infiniband/mlx5_0")
    now = read(host, node)
    assert isinstance(now.ports[PORT].sent_bytes, Unknown)
    assert isinstance(now.port_states[PORT], Unknown)


def test_history_shows_the_greatest_of_each_stretch_and_gaps() -> None:
    history = History()
    for at, value in ((0.0, 1.0), (1.0, 5.0), (25.0, 2.0)):
        history.add(at, value)
    assert history.buckets(3, 10.0) == [5.0, None, 2.0]


def test_history_forgets() -> None:
    history = History(seconds=10)
    for at in range(100):
        history.add(float(at), 1.0)
    assert history.samples()[0][0] >= 89.0


@given(st.lists(st.floats(0, 1e6)), st.integers(1, 80), st.floats(0.1, 100))
def test_history_takes_any_readings(values: list[float], count: int, seconds: float) -> None:
    history = History()
    for at, value in enumerate(values):
        history.add(float(at), value)
    assert len(history.buckets(count, seconds)) == count
