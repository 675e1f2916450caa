"""Ports between two samples: rates and counters are rises a second; what a NIC does not have is unknown."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.node import Node, probe_node
from probes.facts.rdma.devices import RdmaFacts
from probes.host.machine.local import LocalHost
from probes.live.live_sampler import LiveSampler
from probes.live.model.paced_source import read_together
from probes.live.model.sample import PortSample
from probes.live.ports import PortReader, rise
from probes.snapshot.rates import read
from tests.support.trees import add_rdma_device, link, write

PORT = "/sys/class/infiniband/mlx5_0/ports/1"


class Tree(LocalHost):
    """A tree of files with a clock; it counts what is read."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.root = root
        self.now = 100.0
        self.ethtool: Maybe[dict[str, int]] = Unknown(Reason.NOT_THERE, "ethtool -S")
        self.ethtool_asked: list[float] = []
        self.files_read: list[str] = []
        self.refuses = ""

    def monotonic(self) -> float:
        return self.now

    def read_bytes(self, path: str, limit: int = 65536) -> Maybe[bytes]:
        self.files_read.append(path)
        if self.refuses and self.refuses in path:
            return Unknown(Reason.IO_ERROR, path, "Invalid argument")
        return super().read_bytes(path, limit)

    def ethtool_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[dict[str, int]]]:
        self.ethtool_asked.append(self.now)
        return dict.fromkeys(names, self.ethtool)

    def write(self, name: str, value: object) -> None:
        write(self.root, f"{PORT}/{name}", f"{value}\n")


@pytest.fixture
def host(tmp_path: Path) -> Tree:
    add_rdma_device(tmp_path, "mlx5_0", ("pci0000:15", "0000:15:01.0"), link_layer="Ethernet")
    write(tmp_path, "/sys/devices/pci0000:15/0000:15:01.0/net/eth0/dev_port", "0\n")
    host = Tree(tmp_path)
    for name, value in (("out_of_sequence", 5), ("np_cnp_sent", 10), ("local_ack_timeout_err", 4294967295)):
        host.write(f"hw_counters/{name}", value)
    for name, value in (("symbol_error", 65535), ("link_downed", 3), ("port_xmit_wait", 7)):
        host.write(f"counters/{name}", value)
    return host


class Samples:
    """Takes a sample at each moment."""

    def __init__(self, host: Tree) -> None:
        self.host = host
        self.node: Node = probe_node(host)
        self.reader = PortReader()

    def at(self, now: float) -> PortSample:
        self.host.now = now
        reading = read(self.host, self.node)
        read_together(self.host, reading.at, *self.reader.questions(self.host, self.node))
        (sample,) = self.reader.read(reading)
        return sample


def unknown(value: object) -> Unknown:
    assert isinstance(value, Unknown)
    return value


def test_the_first_sample_has_no_rates_and_no_totals_since_boot(host: Tree) -> None:
    sample = Samples(host).at(100.0)
    assert sample.name == "mlx5_0"
    assert (sample.state, sample.line_rate_gbps, sample.netdev) == ("ACTIVE", 400.0, "eth0")
    assert isinstance(sample.sent_gbps, Unknown)
    assert isinstance(sample.counters["link_downed"], Unknown)
    assert isinstance(sample.pause_percent, Unknown)


def test_rates_and_counters_are_rises_a_second(host: Tree) -> None:
    samples = Samples(host)
    samples.at(100.0)
    host.write("counters/port_xmit_data", 1000 + 12_500_000_000 // 4)
    host.write("hw_counters/np_cnp_sent", 30)
    sample = samples.at(102.0)
    assert sample.sent_gbps == pytest.approx(50.0)
    assert sample.received_gbps == 0.0
    assert sample.counters["np_cnp_sent"] == 10.0
    assert sample.counters["out_of_sequence"] == 0.0


@pytest.mark.parametrize(
    ("file", "is_sampled"),
    [
        ("hw_counters/tx_rdma_cnp_pkts", True),  # ionic
        ("hw_counters/tx_rdma_retx_pkts", True),
        ("hw_counters/cnpHandled", True),  # irdma
        ("hw_counters/tcpRetransSegs", True),
        ("hw_counters/RNR received", True),
        ("hw_counters/requester_timeout", True),  # mana
        ("../../hw_counters/sent_cnps", True),
        ("hw_counters/hw_rx_bps_limit_drop_cnt", True),  # erdma
        ("hw_counters/ip4InPkts", False),
        ("hw_counters/current_rate", False),
        ("../../hw_counters/rate_inc_events", False),
    ],
)
def test_counters_of_other_makers_are_rises_too(host: Tree, file: str, is_sampled: bool) -> None:
    host.write(file, 100)
    samples = Samples(host)
    samples.at(100.0)
    host.write(file, 180)
    rises = samples.at(102.0).counters
    name = file.rpartition("/")[2]
    assert rises.get(name) == (40.0 if is_sampled else None)
    assert rises["np_cnp_sent"] == 0.0


def test_bytes_by_priority_show_the_class_of_the_packets(host: Tree) -> None:
    """NVIDIA/nccl issue 2383: the only sign of GPU-posted packets that are in priority 0."""
    samples = Samples(host)
    host.ethtool = {"tx_prio0_bytes": 0, "tx_prio3_bytes": 100, "rx_prio3_pause": 0}
    assert samples.at(100.0).sent_by_priority == {}
    host.ethtool = {"tx_prio0_bytes": 25_000_000_000, "tx_prio3_bytes": 100, "rx_prio3_pause": 0}
    assert samples.at(102.0).sent_by_priority == {0: 100.0, 3: 0.0}
    host.ethtool = Unknown(Reason.TIMED_OUT, "ethtool -S")
    assert samples.at(104.0).sent_by_priority == {}


def test_slow_sources_are_read_every_two_seconds_and_ethtool_once_a_second(host: Tree) -> None:
    samples = Samples(host)
    rounds = []
    for second in range(8):
        host.files_read.clear()
        samples.at(100.0 + second / 2)
        rounds.append(sum(path.endswith("/np_cnp_sent") for path in host.files_read))
    assert rounds == [1, 0, 0, 0, 1, 0, 0, 0]
    assert host.ethtool_asked == [100.0, 101.0, 102.0, 103.0]


def test_the_temperature_of_a_module_is_read_every_ten_seconds(host: Tree) -> None:
    function = "/sys/devices/pci0000:15/0000:15:01.0"
    link(host.root, "/sys/bus/pci/devices/0000:15:01.0", f"../../../{function.removeprefix('/sys/')}")
    link(host.root, f"{function}/driver", "../../../bus/pci/drivers/mlx5_core")
    for number, label in ((1, "asic"), (2, "Module0")):
        sensor = f"{function}/hwmon/hwmon3/temp{number}"
        for name, text in (("label", label), ("input", "61000"), ("highest", "64000"), ("crit", "75000")):
            write(host.root, f"{sensor}_{name}", f"{text}\n")
    samples, rounds = Samples(host), []
    for second in range(25):
        host.files_read.clear()
        assert samples.at(100.0 + second).module_celsius == 61.0
        rounds.append([path.rpartition("/")[2] for path in host.files_read if "/hwmon/" in path])
    assert [number for number, files in enumerate(rounds) if files] == [0, 10, 20]
    assert rounds[10] == ["temp2_input"]  # what does not change is read once


def test_a_counter_that_wraps_at_32_bits_is_a_small_rise(host: Tree) -> None:
    samples = Samples(host)
    samples.at(100.0)
    host.write("hw_counters/local_ack_timeout_err", 3)
    assert samples.at(102.0).counters["local_ack_timeout_err"] == 2.0


def test_a_reset_counter_is_unknown_for_one_round(host: Tree) -> None:
    samples = Samples(host)
    samples.at(100.0)
    host.write("hw_counters/out_of_sequence", 1)
    assert "reset" in unknown(samples.at(102.0).counters["out_of_sequence"]).detail
    host.write("hw_counters/out_of_sequence", 5)
    assert samples.at(104.0).counters["out_of_sequence"] == 2.0


def test_a_full_counter_is_unknown_and_not_quiet(host: Tree) -> None:
    samples = Samples(host)
    samples.at(100.0)
    assert "full" in unknown(samples.at(102.0).counters["symbol_error"]).detail


def test_a_counter_that_the_nic_does_not_have_is_named(host: Tree) -> None:
    samples = Samples(host)
    for now in (100.0, 102.0):
        missing = unknown(samples.at(now).counters["rp_cnp_handled"])
        assert missing.reason is Reason.NOT_THERE
        assert "this NIC has no rp_cnp_handled counter" in missing.detail


def test_a_port_without_counters_says_so(tmp_path: Path) -> None:
    add_rdma_device(tmp_path, "mlx5_0")
    shutil.rmtree(tmp_path / "sys/devices/virtual/infiniband/mlx5_0/ports/1/counters")
    samples = Samples(Tree(tmp_path))
    samples.at(100.0)
    sample = samples.at(102.0)
    assert all(isinstance(value, Unknown) for value in sample.counters.values())
    assert isinstance(sample.sent_gbps, Unknown)
    assert "no netdev" in unknown(sample.pause_percent).detail


def test_a_device_that_refuses_its_counters_is_left_alone_for_a_while(host: Tree) -> None:
    """Each refused reading writes a line into the kernel log."""
    samples = Samples(host)
    host.refuses = "/hw_counters/"
    rounds = []
    for now in (100.0, 102.0, 104.0, 200.0, 699.0, 701.0):
        host.files_read.clear()
        sample = samples.at(now)
        rounds.append(sum("/hw_counters/" in path for path in host.files_read))
        assert unknown(sample.counters["np_cnp_sent"]).reason is Reason.IO_ERROR
    assert rounds == [1, 0, 0, 0, 0, 1]
    assert sample.counters["link_downed"] == 0.0


def test_pauses_are_a_share_of_the_time_and_stalls_a_gauge(host: Tree) -> None:
    samples = Samples(host)
    host.ethtool = {
        "rx_prio3_pause_duration": 1_000_000,
        "tx_prio3_pause_duration": 5,
        "outbound_pci_stalled_wr": 40,
    }
    assert samples.at(100.0).pcie_stall_percent == 40
    host.ethtool = {
        "rx_prio3_pause_duration": 1_250_000,
        "tx_prio3_pause_duration": 5,
        "outbound_pci_stalled_wr": 0,
    }
    sample = samples.at(101.0)
    assert sample.pause_percent == pytest.approx(25.0)
    assert sample.pcie_stall_percent == 0


def test_a_nic_without_pause_and_stall_counters_says_so(host: Tree) -> None:
    samples = Samples(host)
    host.ethtool = {"link_down_events_phy": 2}
    samples.at(100.0)
    host.ethtool = {"link_down_events_phy": 3}
    sample = samples.at(101.0)
    assert unknown(sample.pause_percent).reason is Reason.NOT_THERE
    assert unknown(sample.pcie_stall_percent).reason is Reason.NOT_THERE
    assert sample.counters["link_down_events_phy"] == 1.0


def test_a_changed_line_rate_shows_without_a_new_probe(host: Tree) -> None:
    samples = Samples(host)
    samples.at(100.0)
    host.write("rate", "100 Gb/sec (4X EDR)")
    assert samples.at(106.0).line_rate_gbps == 100.0


def test_an_unchanged_port_is_the_same_object(host: Tree) -> None:
    samples = Samples(host)
    for now in (100.0, 102.0):
        samples.at(now)
    assert samples.at(104.0) is samples.at(106.0)


def test_a_new_probe_of_the_node_keeps_the_counters_running(host: Tree) -> None:
    samples = Samples(host)
    samples.at(100.0)
    samples.node = probe_node(host)
    host.write("hw_counters/np_cnp_sent", 12)
    assert samples.at(102.0).counters["np_cnp_sent"] == 1.0


def test_a_recording_that_is_rewound_has_no_rates_at_first(host: Tree) -> None:
    samples = Samples(host)
    samples.at(100.0)
    samples.at(102.0)
    sample = samples.at(50.0)
    assert isinstance(sample.sent_gbps, Unknown)
    assert isinstance(sample.counters["np_cnp_sent"], Unknown)


@pytest.mark.slow
@given(st.text(max_size=40), st.text(max_size=40))
def test_any_content_of_a_counter_is_a_rate_or_unknown(
    tmp_path_factory: pytest.TempPathFactory, a: str, b: str
) -> None:
    root = tmp_path_factory.mktemp("tree")
    add_rdma_device(root, "mlx5_0", empty_gids=0)
    host = Tree(root)
    values = iter((a, b))
    host.write("hw_counters/np_cnp_sent", 0)
    samples = Samples(host)
    for now in (100.0, 102.0):
        (root / PORT.lstrip("/") / "hw_counters/np_cnp_sent").write_text(next(values), encoding="utf-8")
        value = samples.at(now).counters["np_cnp_sent"]
        assert isinstance(value, Unknown) or value >= 0


@given(st.integers(0, 2**64), st.integers(0, 2**64))
def test_a_rise_is_never_negative(before: int, after: int) -> None:
    risen = rise("np_cnp_sent", before, after)
    assert isinstance(risen, Unknown) or risen >= 0


def test_the_pcie_link_is_read_every_few_seconds(host: Tree) -> None:
    samples = Samples(host)
    assert isinstance(samples.at(100.0).pcie_gtps, Unknown)
    function = "/sys/devices/pci0000:15/0000:15:01.0"
    link(host.root, "/sys/bus/pci/devices/0000:15:01.0", f"../../../{function.removeprefix('/sys/')}")
    write(host.root, f"{function}/current_link_speed", "32.0 GT/s PCIe\n")
    write(host.root, f"{function}/current_link_width", "16\n")
    sample = samples.at(106.0)
    assert (sample.pcie_gtps, sample.pcie_width) == (32.0, 16)
    host.files_read.clear()
    assert samples.at(108.0).pcie_width == 16
    assert any("hw_counters" in path for path in host.files_read)
    assert not [path for path in host.files_read if "current_link" in path]
    write(host.root, f"{function}/current_link_speed", "Unknown\n")
    assert isinstance(samples.at(112.0).pcie_gtps, Unknown)


@pytest.mark.parametrize(
    ("rdma", "sentence"),
    [
        (Unknown(Reason.NOT_THERE), "RDMA is not loaded on this node."),
        (Unknown(Reason.TIMED_OUT), "RDMA devices are unknown (timed out)."),
        (RdmaFacts(()), "This node has no RDMA device."),
        (RdmaFacts((), ("0000:15:01.0",)), "The RDMA devices are in another network namespace."),
    ],
)
def test_a_sample_without_ports_says_why(host: Tree, rdma: Maybe[RdmaFacts], sentence: str) -> None:
    node = replace(probe_node(host), rdma=rdma)
    assert LiveSampler().sample(host, node, read(host, node)).no_ports == sentence
