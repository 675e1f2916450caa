"""Network of a simulated node: eno1 has the SSH session and the default route, storage NICs the mounts."""

from __future__ import annotations

from ipaddress import IPv4Network

from probes.simulation.node.devices.ports import netdev_of
from probes.simulation.node.devices.roce import rails
from probes.simulation.node.model.tree import Tree

MANAGEMENT = "eno1"
SOCKETS = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
_PARENT = 39990  # the shell that started gdrtop
NODE_ADDRESS = "10.0.0.7"
_ADMIN, _GATEWAY, _NETWORK = "10.0.0.5", "10.0.0.1", "10.0.0.0/24"
_PORT = 51000
_ROUTES = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"


def add_network(tree: Tree) -> None:
    """Add the management NIC, the sockets, the mounts and the routes."""
    device = "/sys/devices/pci0000:00/0000:00:1f.6"
    base = f"{device}/net/{MANAGEMENT}"
    tree.link(f"/sys/class/net/{MANAGEMENT}", f"../../{base.removeprefix('/sys/')}")
    tree.link(f"{base}/device", "../../../0000:00:1f.6")
    tree.link(f"{device}/driver", "../../../bus/pci/drivers/igb")
    tree.add_values(base, {"type": 1, "mtu": 1500, "operstate": "up", "flags": "0x1003", "ifindex": 2})
    session = f"{_ADMIN} {_PORT} {NODE_ADDRESS} 22"
    tree.add(f"/proc/{_PARENT}/comm", "bash\n")
    tree.add(f"/proc/{_PARENT}/status", "Name:\tbash\nState:\tS (sleeping)\nPPid:\t1\nUid:\t0\t0\t0\t0\n")
    tree.add(f"/proc/{_PARENT}/environ", f"SHELL=/bin/bash\0SSH_CONNECTION={session}\0".encode())
    tree.add("/proc/40000/status", tree.text("/proc/40000/status") + f"PPid:\t{_PARENT}\n")
    addresses = f"{_hex(NODE_ADDRESS)}:0016 {_hex(_ADMIN)}:{_PORT:04X}"
    established = f"   1: {addresses} 01 00000000:00000000 02:00000000 00000000 0 0 2\n"
    tree.add("/proc/net/tcp", f"{SOCKETS}{listening(22)}{established}")
    tree.add("/proc/net/tcp6", SOCKETS)
    local = "  |-- {}\n     /32 host LOCAL\n"
    own = ("127.0.0.1", NODE_ADDRESS, *(str(address.ip) for _, address in rails(tree)))
    tree.add("/proc/net/fib_trie", f"Local:\n{''.join(map(local.format, own))}")
    tree.add("/proc/40000/mountinfo", "29 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n")
    mounts = "".join(
        f"10.90.{number}.1:/export{number} /data{number} nfs4 rw,proto=rdma,addr=10.90.{number}.1 0 0\n"
        for number, _ in enumerate(_storage(tree))
    )
    tree.add("/proc/mounts", f"/dev/nvme0n1p2 / ext4 rw,relatime 0 0\n{mounts}")
    route_over(tree, MANAGEMENT)


def listening(port: int) -> str:
    """Return the line of a listening socket in /proc/net/tcp."""
    return f"   0: 00000000:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1\n"


def route_over(tree: Tree, netdev: str) -> None:
    """Route the SSH session and the default route over a netdev; storage keeps its own netdevs."""
    default = f"{netdev}\t00000000\t{_hex(_GATEWAY)}\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    storage = ((name, f"10.90.{number}.0/24") for number, name in enumerate(_storage(tree)))
    addressed = ((name, str(address.network)) for name, address in rails(tree))
    on_link = "".join(
        f"{name}\t{_hex(str(network.network_address))}\t00000000\t0001\t0\t0\t100\t{_hex(str(network.netmask))}"
        "\t0\t0\t0\n"
        for name, text in ((netdev, _NETWORK), *storage, *addressed)
        for network in (IPv4Network(text),)
    )
    tree.add("/proc/net/route", f"{_ROUTES}{default}{on_link}")


def _storage(tree: Tree) -> list[str]:
    return [netdev_of(tree, nic) for nic in tree.nics if nic.kind is tree.description.nic.get("storage")]


def _hex(address: str) -> str:
    return "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
