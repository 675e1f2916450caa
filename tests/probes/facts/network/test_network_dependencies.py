"""What depends on the node's network: SSH sessions, default routes, a root file system, and on which NICs."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.facts.network.network_dependencies import NetworkDependency, parse_connections, probe
from probes.facts.network.routes import parse_addresses_v6, parse_routes, parse_routes_v6
from probes.host.machine.local import LocalHost
from probes.plans.common import netdevs_taken_down
from probes.simulation.host import SimulatedHost
from probes.simulation.node.devices.network import route_over
from tests.support.trees import link, write

CARD = "0000:17:00"
ROUTES = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
SOCKETS = "  sl  local_address rem_address   st tx_queue rx_queue\n"


def hexadecimal(address: str) -> str:
    return "".join(f"{int(part):02X}" for part in reversed(address.split(".")))


def route(
    netdev: str, network: str, mask: str, gateway: str = "0.0.0.0", metric: int = 0, flags: int = 1
) -> str:
    destination, via, bits = map(hexadecimal, (network, gateway, mask))
    return "\t".join((netdev, destination, via, f"{flags:04X}", "0", "0", str(metric), bits, "0", "0")) + "\n"


def session(peer: str, local: str = "10.0.0.7", port: int = 22, state: str = "01") -> str:
    return f"   1: {hexadecimal(local)}:{port:04X} {hexadecimal(peer)}:C738 {state} 00:00\n"


def nic(root: Path, name: str, bdf: str, driver: str = "mlx5_core") -> None:
    device = root / "sys/devices/pci0000:15" / bdf
    (device / "net" / name).mkdir(parents=True)
    link(root, f"/sys/class/net/{name}", f"../../devices/pci0000:15/{bdf}/net/{name}")
    (device / "net" / name / "device").symlink_to(f"../../../{bdf}")
    (device / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
    (device / "net" / name / "type").write_text("1\n")


def node(root: Path, *routes: str, sockets: str = "") -> LocalHost:
    write(root, "/proc/net/route", ROUTES + "".join(routes))
    write(root, "/proc/net/tcp", SOCKETS + sockets)
    write(root, "/proc/4242/mountinfo", "29 1 259:2 / / rw shared:1 - ext4 /dev/nvme0n1p2 rw\n")
    link(root, "/proc/self", "4242")
    return LocalHost(str(root))


HERE = route("ens1f0", "10.0.0.0", "255.255.255.0")
DEFAULT = route("ens1f0", "0.0.0.0", "0.0.0.0", "10.0.0.1", 100, 3)


def test_a_session_is_found_without_any_variable(tmp_path: Path) -> None:
    """sudo drops SSH_CONNECTION, and a shell in tmux may have that of another session."""
    nic(tmp_path, "ens1f0", f"{CARD}.0")
    host = node(tmp_path, HERE, DEFAULT, sockets=session("10.0.0.5"))
    assert probe(host).dependencies == (
        NetworkDependency("an SSH session (from 10.0.0.5)", ("ens1f0",)),
        NetworkDependency("the default route", ("ens1f0",)),
    )


def test_our_own_session_is_that_of_the_processes_that_started_us(tmp_path: Path) -> None:
    nic(tmp_path, "ens1f0", f"{CARD}.0")
    host = node(tmp_path, HERE, sockets=session("10.0.0.5", port=2222) + session("10.0.0.6", port=2222))
    write(tmp_path, "/proc/4242/status", "Name:\tgdrtop\nPPid:\t4100\n")
    write(tmp_path, "/proc/4100/status", "Name:\tsudo\nPPid:\t4000\n")
    write(tmp_path, "/proc/4000/status", "Name:\tbash\nPPid:\t1\n")
    write(tmp_path, "/proc/4000/environ", "A=b\0SSH_CONNECTION=10.0.0.5 51000 10.0.0.7 2222\0")
    assert [dependency.what for dependency in probe(host).dependencies] == [
        "this SSH session (from 10.0.0.5)",
        "another SSH session (from 10.0.0.6)",
    ]


def test_sessions_of_a_former_login_listeners_and_loopback_do_not_count(tmp_path: Path) -> None:
    nic(tmp_path, "ens1f0", f"{CARD}.0")
    sockets = (
        session("10.0.0.5", state="06") + session("127.0.0.1", "127.0.0.1") + session("10.0.0.9", port=443)
    )
    host = node(tmp_path, HERE, sockets=sockets)
    write(tmp_path, "/proc/4242/status", "PPid:\t4000\n")
    write(tmp_path, "/proc/4000/environ", "SSH_CONNECTION=10.0.0.5 51000 10.0.0.7 22\0")
    assert probe(host).dependencies == ()


def test_many_sessions_are_one_line(tmp_path: Path) -> None:
    nic(tmp_path, "ens1f0", f"{CARD}.0")
    peers = [f"10.0.0.{number}" for number in range(20, 26)]
    (found,) = probe(node(tmp_path, HERE, sockets="".join(map(session, peers)))).dependencies
    assert found.what == "6 SSH sessions (from 10.0.0.20, 10.0.0.21, 10.0.0.22 and 3 more)"


def test_bonds_bridges_and_vlans_lead_to_their_nics(tmp_path: Path) -> None:
    for number, name in enumerate(("ens1f0", "ens1f1")):
        nic(tmp_path, name, f"{CARD}.{number}")
        link(tmp_path, f"/sys/devices/virtual/net/bond0/lower_{name}", f"../../../../class/net/{name}")
    link(tmp_path, "/sys/devices/virtual/net/bond0.7/lower_bond0", "../bond0")
    for name in ("bond0", "bond0.7"):
        link(tmp_path, f"/sys/class/net/{name}", f"../../devices/virtual/net/{name}")
    facts = probe(node(tmp_path, route("bond0.7", "0.0.0.0", "0.0.0.0", "10.0.0.1", flags=3)))
    assert facts.dependencies == (
        NetworkDependency("the default route", ("bond0.7", "bond0", "ens1f0", "ens1f1")),
    )
    assert set(facts.netdevs) == {"ens1f0", "ens1f1"}
    assert facts.netdevs["ens1f1"].bdf == f"{CARD}.1"


def test_the_default_route_is_that_of_the_lowest_metric(tmp_path: Path) -> None:
    backup = route("ens2", "0.0.0.0", "0.0.0.0", "10.1.0.1", 200, 3)
    dependencies = probe(node(tmp_path, backup, DEFAULT)).dependencies
    assert [dependency.netdevs for dependency in dependencies] == [("ens1f0",)]


def socket_address(address: str) -> str:
    """An IPv6 address as in /proc/net/tcp6: 32-bit words in the byte order of the CPU."""
    packed = ip_address(address).packed
    return b"".join(packed[at : at + 4][::-1] for at in range(0, 16, 4)).hex().upper()


def test_ipv6(tmp_path: Path) -> None:
    nic(tmp_path, "ens1f0", f"{CARD}.0")
    host = node(tmp_path)
    ends = f"{socket_address('2001:db8::7')}:0016 {socket_address('2001:db8::5')}:C738"
    write(tmp_path, "/proc/net/tcp6", f"{SOCKETS}   0: {ends} 01 00:00\n")
    write(tmp_path, "/proc/net/if_inet6", f"{ip_address('2001:db8::7').packed.hex()} 02 40 00 80   ens1f0\n")
    anywhere, gateway = f"{'0' * 32} 00", ip_address("fe80::1").packed.hex()
    default = f"{anywhere} {anywhere} {gateway} 00000064 00000001 00000000 00000003   ens1f0\n"
    rejected = f"{anywhere} {anywhere} {'0' * 32} ffffffff 00000001 00000000 00200200       lo\n"
    write(tmp_path, "/proc/net/ipv6_route", default + rejected)
    assert probe(host).dependencies == (
        NetworkDependency("an SSH session (from 2001:db8::5)", ("ens1f0",)),
        NetworkDependency("the IPv6 default route", ("ens1f0",)),
    )


@pytest.mark.parametrize(
    ("mount", "served"),
    [
        ("0:45 / / rw - nfs4 10.0.0.9:/root rw,vers=4.2,addr=10.0.0.9", "nfs4"),
        ("0:45 / / rw - ext4 /dev/sda1 rw", "iSCSI"),
        ("8:1 / / rw - ext4 /dev/sda1 rw", "iSCSI"),
        ("253:0 / / rw - xfs /dev/mapper/root rw", "iSCSI"),
        ("259:1 / / rw - ext4 /dev/nvme1n1p1 rw", "NVMe/TCP"),
    ],
)
def test_a_root_over_the_network(tmp_path: Path, mount: str, served: str) -> None:
    nic(tmp_path, "ens1f0", f"{CARD}.0")
    host = node(tmp_path, HERE)
    write(tmp_path, "/proc/4242/mountinfo", f"29 1 {mount}\n30 29 0:20 / /proc rw - proc proc rw\n")
    disk = "/sys/devices/platform/host3/session1/target3:0:0/3:0:0:0/block/sda"
    write(tmp_path, f"{disk}/sda1/size", "1\n")
    for name in ("/sys/dev/block/8:1", "/sys/class/block/sda1"):
        link(tmp_path, name, f"../../..{disk}/sda1")
    write(tmp_path, "/sys/class/iscsi_connection/connection1:0/address", "10.0.0.9\n")
    (tmp_path / "sys/devices/virtual/block/dm-0/slaves/sda1").mkdir(parents=True)
    link(tmp_path, "/sys/dev/block/253:0", "../../devices/virtual/block/dm-0")
    part = "/sys/devices/virtual/nvme-subsystem/nvme-subsys1/nvme1n1/nvme1n1p1"
    write(tmp_path, f"{part}/size", "1\n")
    link(tmp_path, "/sys/dev/block/259:1", f"../../..{part}")
    write(tmp_path, "/sys/class/nvme-subsystem/nvme-subsys1/nvme1/x", "")
    write(tmp_path, "/sys/class/nvme/nvme1/transport", "tcp\n")
    write(tmp_path, "/sys/class/nvme/nvme1/address", "traddr=10.0.0.9,trsvcid=4420\n")
    assert probe(host).dependencies == (
        NetworkDependency(f"the root file system ({served} from 10.0.0.9)", ("ens1f0",)),
    )


def test_a_local_root_is_none(tmp_path: Path) -> None:
    host = node(tmp_path)
    disk = "/sys/devices/pci0000:15/0000:16:00.0/nvme/nvme0/nvme0n1/nvme0n1p2"
    write(tmp_path, f"{disk}/size", "1\n")
    link(tmp_path, "/sys/dev/block/259:2", f"../../..{disk}")
    write(tmp_path, "/sys/class/nvme/nvme0/transport", "pcie\n")
    assert probe(host).dependencies == ()


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    host = node(tmp_path, HERE)
    (tmp_path / "proc/net/tcp").unlink()
    (tmp_path / "proc/net/tcp").mkdir()
    (unread,) = probe(host).unread
    assert unread.source == "/proc/net/tcp"


def test_a_malformed_gateway_costs_its_line_and_no_other() -> None:
    heading = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    lines = [
        f"{netdev}\t00000000\t{gateway}\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        for netdev, gateway in (("eth0", "zz"), ("eth1", "0100000A"))
    ]
    assert [route.netdev for route in parse_routes(heading + "".join(lines))] == ["eth1"]


@given(st.text(alphabet="0123456789ABCDEFabcdef:. \t\nens", max_size=400))
def test_tables_may_hold_anything(text: str) -> None:
    for parse in (parse_routes, parse_routes_v6, parse_connections):
        list(parse(text))
    parse_addresses_v6(text)


# What commands take down


@pytest.mark.parametrize(
    ("command", "taken"),
    [
        ("systemctl restart openibd", {"ens4np0", "ens9np0", *(f"ib{n}" for n in (0, 1, 2, 3, 5, 6, 7, 8))}),
        ("systemctl restart nvidia-persistenced", set()),
        ("ip link set dev ens4np0 mtu 9000", {"ens4np0"}),
        ("ip link set dev ens4np0 down", {"ens4np0"}),
        ("ip link set dev ens4np0 up", set()),
        ("ip link set bond0 mtu 9000", {"bond0"}),
        ("modprobe -r ib_ipoib", {f"ib{n}" for n in (0, 1, 2, 3, 5, 6, 7, 8)}),
        ("rmmod igb", {"eno1"}),
        ("rmmod nvidia_peermem", set()),
        ("modprobe mlx5_core", set()),
        ("ibportstate -C mlx5_0 -P 1 -D 0 1 disable", {"ib0"}),
        ("ibportstate -C mlx5_0 -P 1 -D 0 1 enable", set()),
        ("mlxfwreset -d 0000:1a:00.1 reset", {"ib0"}),
        ("mlxlink -d 0000:1a:00.0 -m", set()),
    ],
)
def test_which_netdevs_a_command_takes_down(command: str, taken: set[str]) -> None:
    facts = probe(SimulatedHost("hgx-h100"))
    assert set(netdevs_taken_down(command.split(), facts)) == taken


def test_a_simulated_node_can_have_its_session_over_an_rdma_nic() -> None:
    host = SimulatedHost("hgx-h100")
    assert {dependency.netdevs for dependency in probe(host).dependencies} == {("eno1",)}
    route_over(host.tree, "ib0")
    assert {dependency.netdevs for dependency in probe(host).dependencies} == {("ib0",)}
    over_nic = probe(SimulatedHost("hgx-h100+ssh-over-nic"))
    assert {dependency.netdevs for dependency in over_nic.dependencies} == {("ens4np0",)}
