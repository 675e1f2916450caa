"""What each NIC is for: by rate, place, routes and mounts."""

from pathlib import Path

import pytest

from probes.base.unknown import Unknown
from probes.facts.network.network_dependencies import NetworkUse, parse_mounts, probe_use
from probes.facts.node import probe_node
from probes.host.machine.local import LocalHost
from probes.simulation.host import SimulatedHost
from probes.snapshot.nic_roles import NicRole, Role, roles_of
from probes.topology.paths import build
from tests.support.trees import write

ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
bond0\t00000000\t0100A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth9\t00000000\t0100A8C0\t0203\t0\t0\t1\t00000000\t0\t0\t0
ens4np0\t0000640A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
ens5np0\t0001640A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""
MOUNTS = """\
/dev/md0 / ext4 rw 0 0
filer:/a /my\\040data nfs4 rw,proto=rdma,addr=10.100.1.7,vers=4.2 0 0
10.100.2.9@o2ib:/fs /scratch lustre rw 0 0
filer:/b /home nfs rw,addr=fe80::1 0 0
"""


def roles(name: str) -> dict[str, NicRole]:
    node = probe_node(SimulatedHost(name))
    return roles_of(node, build(node))


def test_nics_near_gpus_are_for_compute_and_those_that_mount_for_storage() -> None:
    found = roles("hgx-h100")
    assert {name for name, nic in found.items() if nic.role is Role.STORAGE} == {"mlx5_4", "mlx5_9"}
    assert {nic.role for name, nic in found.items() if name not in ("mlx5_4", "mlx5_9")} == {Role.COMPUTE}
    assert found["mlx5_0"].reasons == ("near GPU0 (PIX), GPU1 (PIX)", "400 Gb/s InfiniBand")
    assert found["mlx5_4"].reasons == ("mounts /data0 (nfs4)", "100 Gb/s Ethernet")


def test_a_nic_that_is_down_says_so_beside_its_rate() -> None:
    assert roles("hgx-h100+port-down")["mlx5_1"].reasons[-1] == "400 Gb/s InfiniBand (port down)"


@pytest.mark.parametrize("name", ["gb200", "cloud-vm", "pcie-l40s"])
def test_alike_nics_without_a_switch_are_for_compute(name: str) -> None:
    assert {role.role for role in roles(name).values()} == {Role.COMPUTE}


def test_mounts_are_network_file_systems_whose_server_has_an_address() -> None:
    assert [(mount.point, mount.kind, str(mount.server)) for mount in parse_mounts(MOUNTS)] == [
        ("/my data", "nfs4", "10.100.1.7"),
        ("/scratch", "lustre", "10.100.2.9"),
        ("/home", "nfs", "fe80::1"),
    ]


def test_members_of_a_bond_carry_its_default_route(tmp_path: Path) -> None:
    write(tmp_path, "/proc/net/route", ROUTES)
    write(tmp_path, "/proc/mounts", MOUNTS)
    (tmp_path / "sys/class/net/bond0/lower_ens1").mkdir(parents=True)
    (tmp_path / "sys/class/net/ens1").mkdir()
    use = probe_use(LocalHost(str(tmp_path)))
    assert use.default_routes == {"bond0", "ens1"}
    assert use.mounts == {"ens5np0": ("/my data (nfs4)",), "ens4np0": ("/scratch (lustre)",)}


def test_without_routes_nothing_is_claimed(tmp_path: Path) -> None:
    use = probe_use(LocalHost(str(tmp_path)))
    assert isinstance(use.default_routes, Unknown)
    assert isinstance(use.mounts, Unknown)


@pytest.mark.parametrize("text", ["", "Iface\n", "a b c", ROUTES.replace("00", "zz"), "\x00" * 50])
def test_malformed_routes_and_mounts_give_nothing_and_raise_nothing(tmp_path: Path, text: str) -> None:
    write(tmp_path, "/proc/net/route", text)
    write(tmp_path, "/proc/mounts", text)
    assert probe_use(LocalHost(str(tmp_path))) == NetworkUse(frozenset(), {})
