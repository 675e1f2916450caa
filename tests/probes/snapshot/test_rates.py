import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpudirect import PeermemReading
from probes.facts.node import probe_node
from probes.facts.pci.nic_families import HARDWARE_OCTETS
from probes.host.machine.local import LocalHost
from probes.host.usage import InterfaceCounters
from probes.simulation.host import SimulatedHost
from probes.snapshot.rates import PortCounters, Reading, netdev_rates, port_rates, read
from tests.support.trees import add_rdma_device, write

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


def test_a_counter_of_48_bits_wraps() -> None:
    """Those of Intel's NICs do, and the sum of two falls by as much when one does."""
    before, after = (1 << 48) - 10**9, 24 * 10**9
    rate = port_rates(reading(10, before, before + 5 * 10**9), reading(12, after, after + 5 * 10**9))[PORT]
    assert (rate.sent_gbps, rate.received_gbps) == (100.0, 100.0)


@pytest.mark.parametrize("before", [1 << 32, (1 << 47) + 1, (1 << 48) - 10**13, (1 << 50)])
def test_a_reset_is_not_taken_for_a_wrap(before: int) -> None:
    rate = port_rates(reading(10, before, 0), reading(11, 0, 0))[PORT]
    assert isinstance(rate.sent_gbps, Unknown)


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


def counters_of(tmp_path: Path) -> PortCounters:
    host = LocalHost(str(tmp_path))
    return read(host, probe_node(host)).ports[PORT]


def port_of(tmp_path: Path) -> Path:
    return tmp_path / "sys/devices/virtual/infiniband/mlx5_0/ports/1"


@pytest.mark.parametrize(("sent", "received"), HARDWARE_OCTETS)
def test_a_nic_with_byte_counters_in_hw_counters_only(
    tmp_path: Path, sent: tuple[str, ...], received: tuple[str, ...]
) -> None:
    add_rdma_device(tmp_path, "mlx5_0")
    shutil.rmtree(port_of(tmp_path) / "counters")
    for name in sent:
        write(port_of(tmp_path), f"hw_counters/{name}", "700\n")
    for name in received:
        write(port_of(tmp_path), f"hw_counters/{name}", "900\n")
    counters = counters_of(tmp_path)
    assert (counters.sent_bytes, counters.received_bytes) == (700 * len(sent), 900 * len(received))


def test_a_sum_with_an_unread_part_is_unknown(tmp_path: Path) -> None:
    add_rdma_device(tmp_path, "mlx5_0")
    shutil.rmtree(port_of(tmp_path) / "counters")
    for name in ("ip4OutOctets", "ip4InOctets", "ip6InOctets"):
        write(port_of(tmp_path), f"hw_counters/{name}", "700\n")
    write(port_of(tmp_path), "hw_counters/ip6OutOctets", "no number\n")
    counters = counters_of(tmp_path)
    assert isinstance(counters.sent_bytes, Unknown)
    assert counters.received_bytes == 1400


def test_byte_counters_below_the_device(tmp_path: Path) -> None:
    add_rdma_device(tmp_path, "mlx5_0")
    shutil.rmtree(port_of(tmp_path) / "counters")
    write(port_of(tmp_path), "../../hw_counters/tx_bytes", "700\n")
    write(port_of(tmp_path), "../../hw_counters/rx_bytes", "900\n")
    counters = counters_of(tmp_path)
    assert (counters.sent_bytes, counters.received_bytes) == (700, 900)


class Pod(LocalHost):
    """A network namespace whose ports have no counters, and what RDMA netlink answers there."""

    statistics: Maybe[dict[str, int]] = Unknown(Reason.NOT_THERE)

    def rdma_statistics(self, names: Sequence[str]) -> Mapping[str, Maybe[dict[str, int]]]:
        return dict.fromkeys(names, self.statistics)


def in_pod(root: Path, statistics: Maybe[dict[str, int]]) -> PortCounters:
    add_rdma_device(root, "mlx5_0")
    shutil.rmtree(port_of(root) / "counters")
    host = Pod(str(root))
    host.statistics = statistics
    return read(host, probe_node(host)).ports[PORT]


def test_bytes_of_a_pod_come_from_netlink(tmp_path: Path) -> None:
    counters = in_pod(tmp_path, {"tx_bytes": 700, "rx_bytes": 900, "tx_pkts": 1})
    assert (counters.sent_bytes, counters.received_bytes) == (700, 900)


def test_a_nic_without_bytes_in_a_pod_is_unknown_by_its_namespace(tmp_path: Path) -> None:
    sent = in_pod(tmp_path, {"out_of_sequence": 5}).sent_bytes
    assert isinstance(sent, Unknown)
    assert str(sent) == "file missing: counters are not visible from this network namespace"


def test_a_port_without_counters_anywhere_is_in_no_other_namespace(tmp_path: Path) -> None:
    for number, reason in enumerate((Reason.NOT_THERE, Reason.NOT_RECORDED, Reason.TIMED_OUT)):
        sent = in_pod(tmp_path / str(number), Unknown(reason)).sent_bytes
        assert isinstance(sent, Unknown)
        assert (sent.reason, sent.detail) == (Reason.NOT_THERE, "")


def test_a_device_that_counts_packets_only_has_no_rate(tmp_path: Path) -> None:
    add_rdma_device(tmp_path, "mlx5_0")
    shutil.rmtree(port_of(tmp_path) / "counters")
    write(port_of(tmp_path), "hw_counters/sent_pkts", "700\n")
    counters = counters_of(tmp_path)
    assert isinstance(counters.sent_bytes, Unknown)
    assert counters.sent_bytes.reason is Reason.NOT_THERE


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("4294967295", Reason.MALFORMED),
        ("N/A (no PMA)", Reason.NOT_THERE),
        ("-1", Reason.MALFORMED),
        ("", Reason.MALFORMED),
        ("9" * 21, Reason.MALFORMED),
    ],
    ids=["full", "no PMA", "negative", "empty", "too long"],
)
def test_a_counter_that_says_nothing_is_unknown_not_zero(tmp_path: Path, text: str, reason: Reason) -> None:
    add_rdma_device(tmp_path, "mlx5_0")
    write(port_of(tmp_path), "counters/port_xmit_data", f"{text}\n")
    sent = counters_of(tmp_path).sent_bytes
    assert isinstance(sent, Unknown)
    assert sent.reason is reason


def test_a_port_that_appeared_between_two_readings_has_no_rate_yet() -> None:
    before = Reading(10, {}, ABSENT, PeermemReading(ABSENT, ABSENT), {}, {})
    assert port_rates(before, reading(11, 1, 1)) == {}


def test_the_refcount_of_live_modules_is_read_and_of_others_not(tmp_path: Path) -> None:
    write(tmp_path, "/proc/modules", "ib_core 442368 4 - Live 0x0\n")
    write(tmp_path, "/sys/module/ib_core/refcnt", "4\n")
    write(tmp_path, "/sys/module/ib_core/initstate", "live\n")
    host = LocalHost(str(tmp_path))
    assert read(host, probe_node(host)).module_refcnts == {"ib_core": 4}


def test_a_node_without_rdma_or_driver_gives_a_reading(tmp_path: Path) -> None:
    host = LocalHost(str(tmp_path))
    now = read(host, probe_node(host))
    assert now.ports == {}
    assert isinstance(now.gpus, Unknown)
    assert isinstance(now.peermem.refcnt, Unknown)


@pytest.mark.slow
@given(st.integers(0, 2**66) | st.just(ABSENT), st.integers(0, 2**66) | st.just(ABSENT), st.floats(-10, 10))
def test_a_rate_is_never_negative(before: Maybe[int], after: Maybe[int], seconds: float) -> None:
    rate = port_rates(reading(10, before, before), reading(10 + seconds, after, after))[PORT].sent_gbps
    assert isinstance(rate, Unknown) or rate >= 0


def with_interface(at: float, counters: Maybe[InterfaceCounters]) -> Reading:
    return replace(reading(at, 1, 1), interfaces={"ens1np0": counters})


def test_tcp_traffic_of_a_netdev_is_a_rate_of_its_own() -> None:
    before = with_interface(10, InterfaceCounters(0, 0))
    after = with_interface(12, InterfaceCounters(3_000_000_000, Unknown(Reason.MALFORMED, "rx_bytes")))
    rate = netdev_rates(before, after)["ens1np0"]
    assert rate.sent_gbps == pytest.approx(12)
    assert isinstance(rate.received_gbps, Unknown)


def test_a_netdev_without_counters_has_no_rate_of_zero() -> None:
    gone = Unknown(Reason.NOT_THERE, "/proc/net/dev")
    known_before, gone_after = with_interface(10, InterfaceCounters(0, 0)), with_interface(12, gone)
    assert netdev_rates(known_before, gone_after)["ens1np0"].sent_gbps == gone
    assert netdev_rates(gone_after, with_interface(14, InterfaceCounters(0, 0))) == {}


def test_only_a_live_view_reads_the_interfaces() -> None:
    host = SimulatedHost("hgx-h100")
    node = probe_node(host)
    assert not read(host, node).interfaces
    assert "ens4np0" in read(host, node, with_interfaces=True).interfaces


def add_software_device(root: Path, name: str) -> None:
    """Add rxe on eth5, as the kernel shows it: packets are counted, bytes are not."""
    add_rdma_device(root, name, link_layer="Ethernet")
    port = root / f"sys/devices/virtual/infiniband/{name}/ports/1"
    shutil.rmtree(port / "counters")
    for counter in ("sent_pkts", "rcvd_pkts", "completer_retry_err"):
        write(root, f"/sys/devices/virtual/infiniband/{name}/ports/1/hw_counters/{counter}", "7\n")
    write(root, f"/sys/devices/virtual/infiniband/{name}/ports/1/gid_attrs/ndevs/0", "eth5\n")


class Interfaces(LocalHost):
    """A node whose interfaces have sent and received as many bytes as a test says."""

    sent = received = 0

    def interface_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[InterfaceCounters]]:
        return {name: InterfaceCounters(self.sent, self.received) for name in names}

    def monotonic(self) -> float:
        return self.sent / 1e9


@pytest.mark.parametrize("name", ["rxe0", "mlx5_0"])
def test_rates_of_software_rdma_are_those_of_its_interface(tmp_path: Path, name: str) -> None:
    add_software_device(tmp_path, name)
    host = Interfaces(str(tmp_path))
    node = probe_node(host)
    before = read(host, node, with_interfaces=True)
    host.sent, host.received = 10**9, 5 * 10**8
    rate = port_rates(before, read(host, node, with_interfaces=True))[name, 1]
    assert (rate.sent_gbps, rate.received_gbps, rate.interface) == (8.0, 4.0, "eth5")


def test_rates_of_software_rdma_are_unknown_without_its_interface(tmp_path: Path) -> None:
    add_software_device(tmp_path, "rxe0")
    host = Interfaces(str(tmp_path))
    now = read(host, probe_node(host))
    assert isinstance(now.ports["rxe0", 1].sent_bytes, Unknown)


def test_rates_of_a_nic_are_never_those_of_its_interface(tmp_path: Path) -> None:
    add_rdma_device(tmp_path, "mlx5_0", ("pci0000:00", "0000:18:00.0"), link_layer="Ethernet")
    port = "/sys/devices/pci0000:00/0000:18:00.0/infiniband/mlx5_0/ports/1"
    shutil.rmtree(tmp_path / port[1:] / "counters")
    write(tmp_path, f"{port}/gid_attrs/ndevs/0", "eth5\n")
    host = Interfaces(str(tmp_path))
    now = read(host, probe_node(host), with_interfaces=True)
    assert isinstance(now.ports["mlx5_0", 1].sent_bytes, Unknown)
