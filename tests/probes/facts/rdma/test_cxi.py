"""Slingshot NICs: found without verbs, with the state and the rate of their netdev."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown, known
from probes.facts.rdma import cxi, devices
from probes.facts.rdma.devices import Gid, RdmaFacts
from probes.host.machine.local import LocalHost
from probes.live.ports import counter_files, read_counter
from probes.snapshot.rates import read_port
from tests.support.trees import write

NO_PCI = Unknown(Reason.NOT_THERE, "/sys/bus/pci/devices")
FUNCTION = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"


def node(root: Path, state: str = "up", speed: str = "200000") -> LocalHost:
    write(root, f"{FUNCTION}/net/hsn0/operstate", f"{state}\n")
    write(root, f"{FUNCTION}/net/hsn0/speed", f"{speed}\n")
    write(root, f"{FUNCTION}/numa_node", "2\n")
    write(root, f"{FUNCTION}/cxi/cxi0/dev", "510:0\n")
    for link, target in (
        (f"{FUNCTION}/cxi/cxi0/device", FUNCTION),
        (f"{FUNCTION}/driver", "/sys/bus/pci/drivers/cxi_ss1"),
        ("/sys/class/cxi/cxi0", f"{FUNCTION}/cxi/cxi0"),
        ("/sys/class/net/hsn0", f"{FUNCTION}/net/hsn0"),
    ):
        path = root / link[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    return LocalHost(str(root))


def found(host: LocalHost) -> RdmaFacts:
    facts = cxi.add_slingshot(host, devices.probe(host), NO_PCI)
    assert isinstance(facts, RdmaFacts)
    return facts


def test_a_nic_has_the_state_and_rate_of_its_netdev_and_no_verbs(tmp_path: Path) -> None:
    (nic,) = found(node(tmp_path)).devices
    assert (nic.name, nic.bdf, nic.driver, nic.numa_node) == ("cxi0", "0000:01:00.0", "cxi_ss1", 2)
    (port,) = nic.ports
    assert (port.state, port.rate_gbps, port.netdev) == ("ACTIVE", 200.0, "hsn0")
    assert isinstance(nic.uverbs, Unknown)
    assert not cxi.has_verbs(nic)


def test_counters_are_those_of_telemetry_and_have_the_time_of_the_reading(tmp_path: Path) -> None:
    """The form is that of shs-cxi-driver, cass_telem.c: "%llu@%lld.%09lu".

    HPE's CSM guide, where `grep "" /sys/class/cxi/cxi0/device/telemetry/hni_pcs_uncorrected_cw | sed -E
    "s/@.+//g"` prints 90049, drops that time.
    """
    host = node(tmp_path)
    for name, count in (
        ("hni_sts_tx_ok_octets", 4_000_000_000_000),
        ("hni_sts_rx_ok_octets", 3_000_000_000_000),
        ("hni_pcs_uncorrected_cw", 90049),
        ("atu_cache_miss_0", 5),
    ):
        write(tmp_path, f"{FUNCTION}/telemetry/{name}", f"{count}@1675489372.701036980\n")
    (nic,) = found(host).devices
    (port,) = nic.ports
    assert set(known(port.telemetry, ())) == {
        *("hni_sts_tx_ok_octets", "hni_sts_rx_ok_octets", "hni_pcs_uncorrected_cw")
    }
    octets = read_port(host, nic.sysfs_path, port)
    assert (octets.sent_bytes, octets.received_bytes) == (4_000_000_000_000, 3_000_000_000_000)
    files = counter_files(host, nic, port)
    assert {name: read_counter(host, file) for name, file in files.items()} == {
        "hni_pcs_uncorrected_cw": 90049
    }


def test_without_telemetry_rates_are_unknown(tmp_path: Path) -> None:
    (nic,) = found(node(tmp_path)).devices
    octets = read_port(LocalHost(str(tmp_path)), nic.sysfs_path, nic.ports[0])
    assert isinstance(octets.sent_bytes, Unknown)


def test_a_link_that_is_down_has_no_rate(tmp_path: Path) -> None:
    (nic,) = found(node(tmp_path, "down", "-1")).devices
    assert nic.ports[0].state == "DOWN"
    assert isinstance(nic.ports[0].rate_gbps, Unknown)


def test_without_the_class_nothing_changes(tmp_path: Path) -> None:
    absent = Unknown(Reason.NOT_THERE, "/sys/class/infiniband")
    unread = Unknown(Reason.TIMED_OUT, "/sys/class/infiniband")
    assert cxi.add_slingshot(LocalHost(str(tmp_path)), absent, NO_PCI) is absent
    host = node(tmp_path)
    assert cxi.add_slingshot(host, unread, NO_PCI) is unread
    assert isinstance(cxi.add_slingshot(host, absent, NO_PCI), RdmaFacts)


@pytest.mark.slow
@given(state=st.binary(max_size=80), speed=st.binary(max_size=80))
@settings(max_examples=40)
def test_any_bytes_are_an_answer(
    tmp_path_factory: pytest.TempPathFactory, state: bytes, speed: bytes
) -> None:
    root = tmp_path_factory.mktemp("cxi")
    host = node(root)
    (root / FUNCTION[1:] / "net/hsn0/operstate").write_bytes(state)
    (root / FUNCTION[1:] / "net/hsn0/speed").write_bytes(speed)
    (root / FUNCTION[1:] / "telemetry").mkdir()
    for name in (cxi.SENT_OCTETS, cxi.RECEIVED_OCTETS):
        (root / FUNCTION[1:] / f"telemetry/{name}").write_bytes(speed)
    (nic,) = found(host).devices
    assert nic.name == "cxi0"
    assert isinstance(read_port(host, nic.sysfs_path, nic.ports[0]).sent_bytes, int | Unknown)
    assert isinstance(nic.ports[0].gids, Unknown | tuple)
    assert not isinstance(nic.ports[0].gids, tuple) or all(isinstance(gid, Gid) for gid in nic.ports[0].gids)
