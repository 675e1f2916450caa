"""The health of the ports, and counters that have stopped."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.rdma import devices as rdma
from probes.facts.rdma.devices import Gid
from probes.facts.rdma.port_health import (
    CounterValue,
    ErrorCounter,
    PortHealth,
    counter_values,
    parse_counter,
    probe,
    roce_mtu,
    routable_gids,
)
from probes.host.machine.local import LocalHost
from tests.support.machines import machine_file
from tests.support.trees import add_rdma_device, write

PATH = ("pci0000:15", "0000:15:01.0", "0000:18:00.0")
BASE = "/sys/devices/" + "/".join(PATH) + "/infiniband/mlx5_0"


def health(host: LocalHost) -> PortHealth:
    facts = rdma.probe(host)
    assert not isinstance(facts, Unknown)
    return probe(host, facts).ports["mlx5_0", 1]


def node(root: Path, link_layer: str = "InfiniBand", **counters: int) -> LocalHost:
    add_rdma_device(root, "mlx5_0", PATH, link_layer=link_layer)
    for name, value in counters.items():
        write(root, f"{BASE}/ports/1/counters/{name}", f"{value}\n")
    return LocalHost(str(root))


def test_error_counters_with_names_and_values(tmp_path: Path) -> None:
    write(tmp_path, f"{BASE}/ports/1/hw_counters/out_of_sequence", "7\n")
    write(tmp_path, f"{BASE}/ports/1/hw_counters/lifespan", "12\n")
    write(tmp_path, f"{BASE}/ports/1/sm_lid", "0x0\n")
    found = health(node(tmp_path, symbol_error=3, link_downed=255))
    assert found.errors == {"symbol_error": ErrorCounter(3, False), "link_downed": ErrorCounter(255, True)}
    assert found.hw_errors == {"out_of_sequence": 7}
    assert found.sm_lid == 0


def test_counters_for_showing_are_those_above_zero_and_rising_ones_first(tmp_path: Path) -> None:
    write(tmp_path, f"{BASE}/ports/1/hw_counters/out_of_sequence", "7\n")
    write(tmp_path, f"{BASE}/ports/1/hw_counters/packet_seq_err", "0\n")
    now = health(node(tmp_path, symbol_error=3, link_downed=255, port_rcv_errors=9))
    assert counter_values(now) == (
        CounterValue("symbol_error", 3),
        CounterValue("link_downed", 255, is_full=True),
        CounterValue("port_rcv_errors", 9),
        CounterValue("out_of_sequence", 7),
    )
    earlier: dict[str, Maybe[ErrorCounter]] = {
        "symbol_error": ErrorCounter(3, False),
        "link_downed": Unknown(Reason.IO_ERROR),
        "port_rcv_errors": ErrorCounter(40, False),
    }
    before = replace(now, errors=earlier, hw_errors={"out_of_sequence": 5})
    assert counter_values(now, before) == (
        CounterValue("out_of_sequence", 7, 2),
        CounterValue("symbol_error", 3, 0),
        CounterValue("link_downed", 255, is_full=True),
        CounterValue("port_rcv_errors", 9),
    )
    unread = Unknown(Reason.NOT_THERE, "counters")
    assert counter_values(replace(now, errors=unread, hw_errors=unread)) == ()


def test_a_port_without_counters_is_not_a_port_without_errors(tmp_path: Path) -> None:
    host = node(tmp_path)
    found = health(host)
    assert isinstance(found.hw_errors, Unknown)
    assert found.hw_errors.reason is Reason.NOT_THERE
    assert found.errors == {}


def test_after_an_error_the_device_is_left_alone(tmp_path: Path) -> None:
    asked: list[str] = []

    class Failing(LocalHost):
        def read(self, path: str, limit: int = 65536) -> Maybe[str]:
            if "/counters/" not in path:
                return super().read(path, limit)
            asked.append(path)
            return Unknown(Reason.IO_ERROR, path, "Invalid argument")

    node(tmp_path, symbol_error=0, link_downed=0, port_rcv_errors=0)
    found = health(Failing(str(tmp_path)))
    assert len(asked) == 1
    assert not isinstance(found.errors, Unknown)
    assert all(isinstance(counter, Unknown) for counter in found.errors.values())
    assert len(found.errors) == 3


def test_mtu_and_flaps_of_the_netdev(tmp_path: Path) -> None:
    netdev = "/sys/class/net/ens1"
    write(tmp_path, "/sys/devices/" + "/".join(PATH) + "/net/ens1/dev_port", "0\n")
    for name, text in (("mtu", "1500"), ("carrier_changes", "9")):
        write(tmp_path, f"{netdev}/{name}", f"{text}\n")
    for priority in range(8):
        write(tmp_path, f"{netdev}/ecn/roce_rp/enable/{priority}", f"{int(priority == 3)}\n")
    write(tmp_path, f"{BASE}/tc/1/traffic_class", "Global tclass=106\n")
    found = health(node(tmp_path, link_layer="Ethernet"))
    assert (found.netdev, found.netdev_mtu_bytes, found.roce_mtu_bytes) == ("ens1", 1500, 1024)
    assert found.carrier_changes == 9
    assert (found.ecn_priorities, found.traffic_class) == ((3,), 106)


def test_an_infiniband_port_has_no_roce_mtu(tmp_path: Path) -> None:
    found = health(node(tmp_path)).roce_mtu_bytes
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NOT_THERE


@pytest.mark.parametrize(
    ("netdev", "expected"), [(9000, 4096), (4200, 4096), (4191, 2048), (1500, 1024), (351, None), (0, None)]
)
def test_the_mtu_that_rdma_makes_of_a_netdevs(netdev: int, expected: int | None) -> None:
    assert roce_mtu(netdev) == expected


def test_gids_that_can_be_routed() -> None:
    mapped = "0000:0000:0000:0000:0000:ffff:0a00:0107"
    gids = (
        Gid(0, "fe80:0000:0000:0000:0000:0000:0000:0001", "RoCE v2", "ens1"),
        Gid(2, mapped, "IB/RoCE v1", "ens1"),
        Gid(3, mapped, "RoCE v2", "ens1"),
        Gid(4, mapped, Unknown(Reason.IO_ERROR), "ens1"),
    )
    assert routable_gids(gids) == ((3, "10.0.1.7"),)


def test_the_kernels_word_for_no_counters_is_no_number(tmp_path: Path) -> None:
    host = node(tmp_path)
    write(tmp_path, f"{BASE}/ports/1/counters/symbol_error", "N/A (no PMA)\n")
    errors = health(host).errors
    assert not isinstance(errors, Unknown)
    counter = errors["symbol_error"]
    assert isinstance(counter, Unknown)
    assert counter.reason is Reason.NOT_THERE


def test_a_real_h100_node_has_a_counter_that_has_stopped(tmp_path: Path) -> None:
    with tarfile.open(machine_file("ib_sysfs/gpud-h100-sys-class-infiniband.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys-class-infiniband-h100.0").rename(tmp_path / "sys/class/infiniband")
    errors = health(LocalHost(str(tmp_path))).errors
    assert not isinstance(errors, Unknown)
    assert errors["excessive_buffer_overrun_errors"] == ErrorCounter(15, True)
    assert errors["port_rcv_errors"] == ErrorCounter(14, False)


@given(st.text())
def test_no_text_stops_the_parser(text: str) -> None:
    assert parse_counter(text) is None or text.isdecimal()


def test_whether_an_admin_has_set_the_netdev_down(tmp_path: Path) -> None:
    host = node(tmp_path, link_layer="Ethernet")
    write(tmp_path, "/sys/devices/" + "/".join(PATH) + "/net/ens1/dev_port", "0\n")
    assert isinstance(health(host).netdev_is_up, Unknown)
    write(tmp_path, "/sys/class/net/ens1/flags", "0x1002\n")
    assert health(host).netdev_is_up is False
    write(tmp_path, "/sys/class/net/ens1/flags", "0x1003\n")
    assert health(host).netdev_is_up is True
