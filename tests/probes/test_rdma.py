import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import rdma
from probes.host import LocalHost
from probes.rdma import RdmaFacts
from probes.unknown import Reason, Unknown
from tests.machines import machine_file
from tests.trees import add_function, add_rdma_device, link, write

NIC = ("pci0000:00", "0000:00:01.0", "0000:01:00.0")


def facts(root: Path) -> RdmaFacts:
    found = rdma.probe(LocalHost(str(root)))
    assert isinstance(found, RdmaFacts)
    return found


def test_a_port(tmp_path: Path) -> None:
    add_function(tmp_path, NIC, 0x15B3, 0x1021, 0x020700, numa_node=1)
    add_rdma_device(tmp_path, "mlx5_0", NIC)
    write(tmp_path, "/sys/class/infiniband_verbs/uverbs3/ibdev", "mlx5_0\n")
    write(tmp_path, "/sys/devices/" + "/".join(NIC) + "/net/ib0/dev_port", "0\n")
    (device,) = facts(tmp_path).devices
    assert (device.name, device.bdf, device.numa_node) == ("mlx5_0", "0000:01:00.0", 1)
    assert (device.node_type, device.firmware) == ("CA", "28.43.2026")
    assert device.uverbs == "/dev/infiniband/uverbs3"
    (port,) = device.ports
    assert (port.number, port.state, port.physical_state) == (1, "ACTIVE", "LinkUp")
    assert (port.rate_gbps, port.rate_text, port.link_layer) == (400.0, "4X NDR", "InfiniBand")
    assert port.netdev == "ib0"
    assert not isinstance(port.gids, Unknown)
    assert [(gid.index, gid.type) for gid in port.gids] == [(0, "RoCE v2")]


def test_devices_stand_in_natural_order(tmp_path: Path) -> None:
    for number in (10, 2, 0):
        add_rdma_device(tmp_path, f"mlx5_{number}")
    assert [device.name for device in facts(tmp_path).devices] == ["mlx5_0", "mlx5_2", "mlx5_10"]


def test_a_software_device_is_on_no_pci_function(tmp_path: Path) -> None:
    add_rdma_device(tmp_path, "rxe0", link_layer="Ethernet")
    (device,) = facts(tmp_path).devices
    assert isinstance(device.bdf, Unknown)


def test_a_thousand_empty_gids_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_rdma_device(tmp_path, "rxe0", gids=2, empty_gids=1022)
    host = LocalHost(str(tmp_path))
    asked: list[str] = []
    read = host.read

    def counting(path: str, limit: int = 65536) -> object:
        asked.append(path)
        return read(path, limit)

    monkeypatch.setattr(host, "read", counting)
    found = rdma.probe(host)
    assert isinstance(found, RdmaFacts)
    gids = found.devices[0].ports[0].gids
    assert not isinstance(gids, Unknown)
    assert len(gids) == 2
    assert len([path for path in asked if "/gids/" in path]) < 20


def test_a_port_that_is_down_and_one_that_cannot_be_read(tmp_path: Path) -> None:
    add_rdma_device(tmp_path, "mlx5_0", state="1: DOWN", rate="garbage")
    (port,) = facts(tmp_path).devices[0].ports
    assert port.state == "DOWN"
    assert isinstance(port.rate_gbps, Unknown)
    assert port.rate_gbps.reason is Reason.MALFORMED


def test_virtual_functions_are_seen(tmp_path: Path) -> None:
    add_function(tmp_path, NIC, 0x15B3, 0x101E, 0x020000)
    add_rdma_device(tmp_path, "mlx5_0", NIC)
    link(tmp_path, "/sys/devices/" + "/".join(NIC) + "/physfn", "../0000:01:01.0")
    assert facts(tmp_path).devices[0].is_virtual_function


def test_names_with_escape_sequences_are_made_harmless(tmp_path: Path) -> None:
    add_rdma_device(tmp_path, "mlx5\x1b[2J")
    (device,) = facts(tmp_path).devices
    assert "\x1b" not in device.name
    assert device.ports[0].state == "ACTIVE"


def test_no_ib_core_is_not_there(tmp_path: Path) -> None:
    found = rdma.probe(LocalHost(str(tmp_path)))
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NOT_THERE


def test_a_recorded_h100_node(tmp_path: Path) -> None:
    with tarfile.open(machine_file("ib_sysfs/gpud-h100-sys-class-infiniband.tar.gz")) as archive:
        archive.extractall(tmp_path / "x")
    roots = [path for path in (tmp_path / "x").rglob("mlx5_0") if path.is_dir()]
    if not roots:
        pytest.skip("no mlx5_0 in the archive")
    (tmp_path / "node/sys/class").mkdir(parents=True)
    (tmp_path / "node/sys/class/infiniband").symlink_to("/infiniband")
    roots[0].parent.rename(tmp_path / "node/infiniband")
    devices = facts(tmp_path / "node").devices
    assert devices[0].name == "mlx5_0"
    assert all(port.rate_gbps == 400.0 for port in devices[0].ports)
    assert any(device.name.startswith("mlx5_bond") for device in devices)


@given(st.text())
def test_parsers_take_any_text(text: str) -> None:
    rdma.parse_rate(text)
    rdma.parse_numbered(text)
    rdma.natural(text)
