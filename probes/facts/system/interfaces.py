"""Network interfaces with IPv4 addresses, in the order in which NCCL and getifaddrs(3) list them.

Sources: /proc/net/route (an address with a prefix adds an on-link route), /sys/class/net/*/ifindex. The
kernel lists addresses by interface index, IPv4 before IPv6 (net/core/rtnetlink.c, rtnl_dump_all).
"""

from __future__ import annotations

import re

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Unknown
from probes.facts.system.routes import NET, parse_routes
from probes.host.protocol import Host

_ROUTES = "/proc/net/route"
_LIMIT_BYTES = 1 << 20
_MAX_INTERFACES = 128
_NAME = re.compile(r"[A-Za-z0-9_@:-][A-Za-z0-9_.@:-]{0,14}")


@frozen
class Interface:
    """One interface of this network namespace."""

    name: str
    index: int
    networks: tuple[str, ...]  # its IPv4 networks, "10.0.0.0/24"


@frozen
class InterfaceFacts:
    """Interfaces with an IPv4 network, by index; those with an unknown index are left out."""

    interfaces: tuple[Interface, ...]


def probe(host: Host) -> Maybe[InterfaceFacts]:
    """Read the routes and the index of each interface in them."""
    text = host.read(_ROUTES, _LIMIT_BYTES)
    if isinstance(text, Unknown):
        return text
    networks: dict[str, list[str]] = {}
    for route in parse_routes(text):
        mapped = route.network.network_address.ipv4_mapped
        if mapped is None or route.has_gateway or route.network.prefixlen <= 96:
            continue
        if _NAME.fullmatch(route.netdev) and (route.netdev in networks or len(networks) < _MAX_INTERFACES):
            prefix = route.network.prefixlen - 96
            networks.setdefault(route.netdev, []).append(f"{route.destination}/{prefix}")
    found: list[Interface] = []
    for name, of_name in networks.items():
        index = host.read(f"{NET}/{name}/ifindex", 64)
        if not isinstance(index, Unknown) and re.fullmatch(r"[0-9]{1,9}", index):
            found.append(Interface(name, int(index), tuple(of_name)))
    return InterfaceFacts(tuple(sorted(found, key=lambda interface: interface.index)))
