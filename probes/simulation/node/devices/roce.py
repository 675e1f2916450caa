"""The netdevs of the RDMA NICs of a simulated node: names, bonds, IPv4 addresses, ARP settings, QoS.

QoS is what dcb of iproute2 or OFED's mlnx_qos shows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from ipaddress import IPv4Interface

from probes.base.unknown import Maybe
from probes.facts.rdma.rail_networks import CONF, RULES
from probes.host.answers import CommandOutput
from probes.simulation.node.devices.pci import second_function
from probes.simulation.node.devices.ports import few_bytes, netdev_of
from probes.simulation.node.model.description import QosDescription
from probes.simulation.node.model.tree import PlacedNic, Tree

# rp_filter: Ubuntu's /etc/sysctl.d/10-network-security.conf; the others: the kernel's defaults.
_DEFAULTS = {"rp_filter": 2, "arp_ignore": 0, "arp_announce": 0, "arp_filter": 0}
_FIRST_BOND_INDEX = 100
_PRIORITIES, _DSCPS = 8, 64
DCB, MLNX_QOS = "dcb", "mlnx_qos"


def port_netdev(nic: PlacedNic) -> str:
    """Return the netdev that the RDMA port belongs to; "": that of its function."""
    return nic.kind.netdev.format(number=nic.number)


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
    second_name = netdev_of(tree, nic).replace("f0np0", "f1np1")
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

    def mlnx_qos(argv: Sequence[str], seconds: float) -> Maybe[str | CommandOutput]:
        return _text(qos)

    tree.commands[qos.tool] = dcb if qos.tool == DCB else mlnx_qos


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
