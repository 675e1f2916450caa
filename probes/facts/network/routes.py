"""Routes, interfaces and listening ports of this network namespace, and which netdev carries a connection.

Formats: proc(5), /proc/net/{route,if_inet6}; /proc/net/ipv6_route, Linux net/ipv6/route.c, rt6_info_dump.
Policy routing is not followed: the netdev of the local address is named in addition to that of the route to
the peer. Interfaces with IPv4 addresses are in the order in which NCCL and getifaddrs(3) list them, which is
the kernel's: by index, IPv4 before IPv6 (net/core/rtnetlink.c, rtnl_dump_all).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_network

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.host.protocol import Host

NET = "/sys/class/net"
_ROUTES = "/proc/net/route"
_LIMIT_BYTES = 1 << 20
_MAX_INTERFACES = 128
_NAME = re.compile(r"[A-Za-z0-9_@:-][A-Za-z0-9_.@:-]{0,14}")
_MOST_LAYERS = 8  # VLAN over bridge over bond over NIC
_RTF_UP, _RTF_REJECT = 0x1, 0x200  # include/uapi/linux/route.h
Address = IPv4Address | IPv6Address


@frozen
class Route:
    """One active route."""

    netdev: str
    network: IPv6Network  # IPv4 as ::ffff:0:0/96
    has_gateway: bool
    metric: int
    # As written. In a redacted recording it differs for each network; networks with their masks do not.
    destination: Address


def with_lower(host: Host, name: str) -> tuple[str, ...]:
    """Return a netdev and those below it, by the links lower_NAME of bonds, bridges and VLANs."""
    found: dict[str, None] = {name: None}
    layer = [name]
    for _ in range(_MOST_LAYERS):
        entries = dict.fromkeys(entry for upper in layer for entry in known(host.names(f"{NET}/{upper}"), ()))
        layer = [entry.removeprefix("lower_") for entry in entries if entry.startswith("lower_")]
        found.update(dict.fromkeys(layer))
    return tuple(printable(netdev, 32) for netdev in found)


def carriers(
    local: Address | None, peer: Address, routes: Iterable[Route], addresses: dict[Address, str]
) -> tuple[str, ...]:
    """Return the netdevs that carry a connection to a peer, by the route and by the local address."""
    routes = list(routes)
    names: dict[str, None] = {}
    if not peer.is_link_local:
        names.update(dict.fromkeys(_best(peer, routes)))
    if local is not None:
        if local in addresses:
            names[addresses[local]] = None
        else:
            on_link = [route for route in routes if not route.has_gateway and not _is_default(route)]
            names.update(dict.fromkeys(_best(local, on_link, any_metric=True)))
    return tuple(names)


def _best(address: Address, routes: Iterable[Route], any_metric: bool = False) -> list[str]:
    """Return the netdevs of the routes with the longest prefix and, of those, the lowest metric."""
    wide = address if isinstance(address, IPv6Address) else IPv6Address(f"::ffff:{address}")
    matching = [route for route in routes if wide in route.network]
    if not matching:
        return []
    longest = max(route.network.prefixlen for route in matching)
    matching = [route for route in matching if route.network.prefixlen == longest]
    lowest = min(route.metric for route in matching)
    return [route.netdev for route in matching if any_metric or route.metric == lowest]


def _is_default(route: Route) -> bool:
    return route.network.prefixlen in (0, 96)


def default_routes(routes: list[Route]) -> Iterator[tuple[str, list[str]]]:
    """Yield the default routes of IPv4 and IPv6, each with the netdevs of its lowest metric."""
    for what, prefix in (("the default route", 96), ("the IPv6 default route", 0)):
        of_kind = [route for route in routes if route.network.prefixlen == prefix]
        if of_kind:
            lowest = min(route.metric for route in of_kind)
            yield what, [route.netdev for route in of_kind if route.metric == lowest]


def parse_routes(text: str) -> Iterator[Route]:
    """Parse /proc/net/route: addresses in hexadecimal, in the byte order of the CPU."""
    for line in text.split("\n")[1:]:
        words = line.split()
        try:
            name, destination, gateway, flags = words[0], words[1], words[2], int(words[3], 16)
            metric, mask = int(words[6]), _v4(words[7])
            if not flags & _RTF_UP or flags & _RTF_REJECT:
                continue
            address = _v4(destination)
            network = ip_network(f"{address}/{mask}", strict=False)
            has_gateway = int(gateway, 16) != 0
        except (IndexError, ValueError):
            continue
        wide = IPv6Network(f"::ffff:{network.network_address}/{96 + network.prefixlen}")
        yield Route(name, wide, has_gateway, metric, address)


def parse_routes_v6(text: str) -> Iterator[Route]:
    """Parse /proc/net/ipv6_route."""
    for line in text.split("\n"):
        words = line.split()
        try:
            address = IPv6Address(int(words[0], 16))
            network = IPv6Network((int(address), int(words[1], 16)), strict=False)
            gateway, metric, flags, name = int(words[4], 16), int(words[5], 16), int(words[8], 16), words[9]
        except (IndexError, ValueError):
            continue
        if flags & _RTF_UP and not flags & _RTF_REJECT and name != "lo":
            yield Route(name, network, gateway != 0, metric, address)


def parse_addresses_v6(text: str) -> dict[Address, str]:
    """Parse /proc/net/if_inet6: address -> netdev."""
    rows = (line.split() for line in text.split("\n"))
    valid = (row for row in rows if len(row) == 6 and re.fullmatch(r"[0-9a-f]{32}", row[0]))
    return {IPv6Address(int(row[0], 16)): row[5] for row in valid}


def _v4(word: str) -> IPv4Address:
    return IPv4Address(bytes.fromhex(word)[::-1])


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
    """Read the routes, of which an address with a prefix adds one, and the index of each interface."""
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


# TCP ports with a listener (proc(5), /proc/net/tcp).

_TCP_BYTES = 4 << 20
# Local address, local port, a remote address of zeros, state 0A: TCP_LISTEN (include/net/tcp_states.h).
_LISTENER = re.compile(r"^ *\d+: [0-9A-F]{8,32}:([0-9A-F]{4}) [0-9A-F]{8,32}:0000 0A ", re.M)
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


def listening(host: Host) -> Maybe[dict[int, str]]:
    """Return every port with a listener, and the file that shows it."""
    ports: dict[int, str] = {}
    for path in TABLES:
        table = host.read(path, _TCP_BYTES)
        if isinstance(table, Unknown):
            if table.reason is Reason.NOT_THERE and path.endswith("6"):  # a kernel without IPv6
                continue
            return table
        for port in _LISTENER.findall(table):
            ports.setdefault(int(port, 16), path)
    return ports


def free_port(host: Host, first: int, most: int = 100) -> Maybe[int]:
    """Return the first port without a listener, among `most` ports from `first` on."""
    ports = range(first, first + most)
    none = Unknown(Reason.NOT_THERE, TABLES[0], f"all ports from {first} to {ports[-1]} are in use")
    return map_known(listening(host), lambda taken: next((port for port in ports if port not in taken), none))
