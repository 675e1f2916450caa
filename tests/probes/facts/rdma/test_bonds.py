"""Bonds under RDMA devices: rate, lost ports, and bonds that are not mlx5 LAG."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Unknown
from probes.facts.rdma import devices
from probes.facts.rdma.devices import RdmaPort, parse_members, read_bond
from probes.host.machine.local import LocalHost
from tests.support.doctor import examination_of
from tests.support.trees import add_rdma_device, write

CARD = ("pci0000:15", "0000:15:01.0", "0000:18:00.0")
FIRST = "/sys/devices/" + "/".join(CARD)
SECOND = FIRST.removesuffix(".0") + ".1"


def bonded(root: Path, mode: str = "802.3ad 4", second: str = "up", own_device: bool = False) -> RdmaPort:
    """A card with two ports of 200 Gb/s, bonded as bond0."""
    add_rdma_device(root, "mlx5_bond_0", CARD, link_layer="Ethernet")
    port = f"{FIRST}/infiniband/mlx5_bond_0/ports/1"
    write(root, f"{port}/rate", "200 Gb/sec (4X HDR)\n")
    write(root, f"{port}/gids/0", "0000:0000:0000:0000:0000:ffff:0a1e:000b\n")
    write(root, f"{port}/gid_attrs/types/0", "RoCE v2\n")
    write(root, f"{port}/gid_attrs/ndevs/0", "bond0\n")
    write(root, "/sys/class/net/bond0/bonding/slaves", "ens0f0np0 ens0f1np1\n")
    write(root, "/sys/class/net/bond0/bonding/mode", f"{mode}\n")
    for name, path, state in (("ens0f0np0", FIRST, "up"), ("ens0f1np1", SECOND, second)):
        net = root / f"sys/class/net/{name}"
        net.mkdir(parents=True)
        Path(f"{root}{path}").mkdir(parents=True, exist_ok=True)
        (net / "device").symlink_to(path)
        (net / "operstate").write_text(f"{state}\n")
        (net / "speed").write_text("200000\n" if state == "up" else "-1\n")
    if own_device:
        Path(f"{root}{SECOND}/infiniband/mlx5_1").mkdir(parents=True)
    facts = devices.probe(LocalHost(str(root)))
    assert not isinstance(facts, Unknown)
    return facts.devices[0].ports[0]


def test_the_rate_of_a_bond_is_the_sum_of_its_ports(tmp_path: Path) -> None:
    port = bonded(tmp_path)
    assert port.rate_gbps == 400
    assert port.bond is not None
    assert (port.bond.mode, port.bond.ports_at_once) == ("802.3ad", 2)
    assert [member.netdev for member in port.bond.up] == ["ens0f0np0", "ens0f1np1"]


def test_a_port_that_is_down_does_not_count(tmp_path: Path) -> None:
    port = bonded(tmp_path, second="down")
    assert port.rate_gbps == 200
    assert port.bond is not None
    assert [member.netdev for member in port.bond.up] == ["ens0f0np0"]


def test_with_active_backup_one_port_carries_everything(tmp_path: Path) -> None:
    port = bonded(tmp_path, mode="active-backup 1")
    assert port.rate_gbps == 200
    assert port.bond is not None
    assert port.bond.ports_at_once == 1


def test_a_bond_whose_ports_have_rdma_devices_of_their_own_is_not_one_device(tmp_path: Path) -> None:
    port = bonded(tmp_path, own_device=True)
    assert port.bond is None
    assert port.rate_gbps == 200


def test_the_second_port_of_a_bond_is_no_nic_of_its_own_in_the_topology() -> None:
    assert len(examination_of("bare-roce").topology.nics) == 8


def test_without_a_bond_there_is_none(tmp_path: Path) -> None:
    assert read_bond(LocalHost(str(tmp_path)), "mlx5_0", "eth0") is None


@given(st.binary(max_size=200))
def test_members_are_names_of_netdevs(content: bytes) -> None:
    names = parse_members(content.decode("utf-8", "replace"))
    assert all("/" not in name and len(name) <= 16 for name in names)
