"""Network of a simulated node: netdevs of RDMA NICs with bonds, addresses, ARP and QoS, and routes.

QoS is what dcb of iproute2 or OFED's mlnx_qos shows. eno1 has the SSH session and the default route, storage
NICs have the mounts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from ipaddress import IPv4Interface, IPv4Network

from probes.facts.rdma.roce import CONF, RULES
from probes.simulation.node.devices.pci import second_function
from probes.simulation.node.devices.ports import few_bytes, netdev_of
from probes.simulation.node.model.description import QosDescription
from probes.simulation.node.model.tree import PlacedNic, Tree

# rp_filter: Ubuntu's /etc/sysctl.d/10-network-security.conf; the others: the kernel's defaults.
_DEFAULTS = {"rp_filter": 2, "arp_ignore": 0, "arp_announce": 0, "arp_filter": 0}
_FIRST_BOND_INDEX = 100
_PRIORITIES, _DSCPS = 8, 64


def port_netdev(nic: PlacedNic) -> str:
    """Return the netdev that the RDMA port belongs to; "": that of its function."""
    place = nic.name.removeprefix("roce")
    return nic.kind.netdev.format(number=nic.number, place=place, function=nic.bdf[-1])


def address_of(nic: PlacedNic) -> IPv4Interface | None:
    """Return the address of a port's netdev."""
    text = nic.kind.address.format(number=nic.number)
    return IPv4Interface(text) if text else None


def rails(tree: Tree) -> list[tuple[str, IPv4Interface]]:
    """Return the netdevs of RDMA ports with an address."""
    return [
        (port_netdev(nic) or netdev_of(tree, nic), address)
        for nic in tree.nics
        if (address := address_of(nic)) is not None
    ]


def add_rails(tree: Tree) -> None:
    """Add bonds, and the settings of ARP and of the reverse path filter of every RoCE netdev."""
    names = ["all", "default"]
    for nic in tree.nics:
        if nic.kind.layer != "Ethernet":
            continue
        names.append(netdev_of(tree, nic))
        if nic.kind.bonded_ports > 1:
            names.append(port_netdev(nic))
            _add_bond(tree, nic)
    for name in names:
        tree.add_values(f"{CONF}/{name}", _DEFAULTS)
    sysctl = tree.description.sysctl
    tree.add_values("/proc/sys", {key.replace(".", "/"): value for key, value in sysctl.items()})
    if rails(tree):
        set_policy_routing(tree, by_source=False)


def set_policy_routing(tree: Tree, by_source: bool) -> None:
    """Let `ip -j rule` and `ip -j route` show the main table, and with `by_source` one for each rail."""
    addressed = rails(tree)
    rules: list[dict[str, object]] = [{"priority": 0, "src": "all", "table": "local"}]
    routes = [{"dst": str(address.network), "dev": name, "scope": "link"} for name, address in addressed]
    for number, (name, address) in enumerate(addressed if by_source else (), 101):
        rules.append({"priority": number, "src": str(address.ip), "table": str(number)})
        routes.append({"dst": str(address.network), "dev": name, "table": str(number), "scope": "link"})
    rules.append({"priority": 32766, "src": "all", "table": "main"})
    answers = {True: json.dumps(rules), False: json.dumps(routes)}
    tree.commands["ip"] = lambda argv, seconds: answers[argv == RULES]


def _add_bond(tree: Tree, nic: PlacedNic) -> None:
    """Add the second port's netdev, and the bond over both (Documentation/networking/bonding.rst)."""
    bond = port_netdev(nic)
    master = f"/sys/devices/virtual/net/{bond}"
    tree.link(f"/sys/class/net/{bond}", f"../../devices/virtual/net/{bond}")
    first = f"{nic.path}/net/{netdev_of(tree, nic)}"
    second_name = _second_netdev(netdev_of(tree, nic))
    second = f"{second_function(nic.path)}/net/{second_name}"
    tree.link(f"/sys/class/net/{second_name}", f"../../{second.removeprefix('/sys/')}")
    tree.link(f"{second}/device", "../..")
    index = _FIRST_BOND_INDEX + 2 * nic.number
    mbps = round(nic.kind.line_gbps * 1000)
    usual = {"mtu": nic.kind.mtu or 9000, "operstate": "up", "carrier_changes": 2, "type": 1}
    for path, values in (
        (first, {"flags": "0x1803", "speed": mbps}),  # IFF_SLAVE
        (second, {"flags": "0x1803", "speed": mbps, "ifindex": index}),
        (master, {"flags": "0x1403", "speed": 2 * mbps, "ifindex": index + 1}),  # IFF_MASTER
    ):
        tree.add_values(path, usual | values)
    for member in (first, second):
        name = member.rpartition("/")[2]
        tree.link(f"{member}/master", f"../../../../../virtual/net/{bond}")
        tree.link(f"{master}/lower_{name}", member)
        tree.add(f"{member}/bonding_slave/mii_status", "up\n")
    slaves = f"{first.rpartition('/')[2]} {second_name}"
    modes = {"mode": "802.3ad 4", "xmit_hash_policy": "layer3+4 1"}
    tree.add_values(f"{master}/bonding", {"slaves": slaves, **modes})
    for direction in ("tx", "rx"):
        tree.add(f"{master}/statistics/{direction}_bytes", few_bytes)


def _second_netdev(first: str) -> str:
    return first.replace("f0np0", "f1np1")


def add_qos(tree: Tree) -> None:
    """Add the tool that the description names; all its NICs answer alike."""
    described = next((nic.qos for nic in tree.description.nic.values() if nic.qos is not None), None)
    if described is not None:
        set_qos(tree, described)


def set_qos(tree: Tree, qos: QosDescription) -> None:
    """Let the tool show these settings."""

    def dcb(argv: Sequence[str], seconds: float) -> str:
        if "pfc" in argv:
            enabled = [number in qos.pfc for number in range(_PRIORITIES)]
            shown: dict[str, object] = {"pfc_cap": 8, "macsec_bypass": False, "delay": 0, "prio_pfc": enabled}
        else:
            shown = {"dscp_prio": [list(pair) for pair in _mapping(qos)]} if qos.trusts_dscp else {}
        return json.dumps(shown)

    tree.commands[qos.tool] = dcb if qos.tool == "dcb" else lambda argv, seconds: _text(qos)


def _mapping(qos: QosDescription) -> list[tuple[int, int]]:
    """Return (DSCP, priority): by default the upper three bits of the DSCP."""
    return [(dscp, qos.priorities.get(dscp, dscp >> 3)) for dscp in range(_DSCPS)]


def _text(qos: QosDescription) -> str:
    lines = ["DCBX mode: OS controlled", f"Priority trust state: {'dscp' if qos.trusts_dscp else 'pcp'}"]
    if qos.trusts_dscp:
        lines.append("dscp2prio mapping:")
        for number in range(_PRIORITIES):
            listed = "".join(f"{dscp:02d}," for dscp, priority in _mapping(qos)[::-1] if priority == number)
            lines += [f"\tprio:{number} dscp:{listed}"] if listed else []
    enabled = "   ".join("1" if number in qos.pfc else "0" for number in range(_PRIORITIES))
    lines += [
        "Receive buffer size (bytes): 20016,156096,0,0,0,0,0,0,total_size=1027728",
        "Cable len: 7",
        "PFC configuration:",
        "\tpriority    0   1   2   3   4   5   6   7",
        f"\tenabled     {enabled}   ",
        *(f"tc: {tc} ratelimit: unlimited, tsa: vendor\n\t priority:  {tc}" for tc in range(_PRIORITIES)),
    ]
    return "\n".join(lines) + "\n"


# The switch at the other end of each cable, as lldpd hears it.

_FRAME_BYTES = 9216


def lldp_netdevs(tree: Tree, nic: PlacedNic) -> list[str]:
    """Return the netdevs of a NIC's cables: both ports of a bond."""
    first = netdev_of(tree, nic)
    return [first, _second_netdev(first)] if nic.kind.bonded_ports > 1 else [first]


def add_lldp(tree: Tree) -> None:
    """Add lldpd where the description names leaves: each rail has one, and each node a port of its own."""
    for nic in tree.nics:
        for netdev, member in zip(lldp_netdevs(tree, nic) if nic.kind.leaf else (), "ab", strict=False):
            identity = {"type": "mac", "value": f"0c:42:a1:00:{nic.number:02x}:0{'ab'.index(member) + 1}"}
            leaf = nic.kind.leaf.format(number=nic.number, member=member)
            tree.neighbors[netdev] = {
                "via": "LLDP",
                "age": "12 days, 04:10:33",
                "chassis": {leaf: {"id": identity, "descr": "SONiC Software Version", "mgmt-ip": "10.0.3.1"}},
                "port": {
                    "id": {"type": "ifname", "value": f"Ethernet{tree.seed + 1}"},
                    "descr": f"To-{tree.description.hostname}-{netdev}",
                    "ttl": "120",
                    "mfs": str(_FRAME_BYTES),
                },
            }
    if tree.neighbors:
        tree.commands["lldpctl"] = lambda argv, seconds: _heard(tree)
        tree.add("/usr/sbin/lldpctl", "")


def _directory(tree: Tree, netdev: str) -> str:
    return tree.links[f"/sys/class/net/{netdev}"].replace("../..", "/sys", 1)


def _heard(tree: Tree) -> str:
    """Return what lldpctl prints: a list of neighbors, or the only one."""
    heard = [
        {netdev: neighbor}
        for netdev, neighbor in tree.neighbors.items()
        if tree.text(f"{_directory(tree, netdev)}/operstate").strip() == "up"
    ]
    interfaces = {} if not heard else {"interface": heard if len(heard) > 1 else heard[0]}
    return json.dumps({"lldp": interfaces})


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
