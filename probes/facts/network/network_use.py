"""The netdevs that carry the default route and network file systems, from which the roles of NICs follow.

Routes are those of this network namespace (/proc/net/route, /proc/net/ipv6_route), mounts those of this mount
namespace (/proc/mounts). Pods have their own, which are not included.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.network.network_dependencies import NETWORK_FILE_SYSTEM, server_of
from probes.facts.network.routes import (
    Address,
    carriers,
    default_routes,
    parse_routes,
    parse_routes_v6,
    with_lower,
)
from probes.host.protocol import Host

_ROUTES, _ROUTES_IPV6, _MOUNTS = "/proc/net/route", "/proc/net/ipv6_route", "/proc/mounts"
_LIMIT_BYTES = 1 << 20
_MOST_MOUNTS = 64


@frozen
class NetworkUse:
    """Which netdevs carry the default route and which network file systems."""

    default_routes: Maybe[frozenset[str]]  # netdevs, including those below a bond or VLAN
    mounts: Maybe[Mapping[str, tuple[str, ...]]]  # netdev -> "/data (nfs4)"


@frozen
class NetworkMount:
    """A network file system whose server's address is known."""

    point: str
    kind: str
    server: Address


def parse_mounts(text: str) -> tuple[NetworkMount, ...]:
    """Parse the network file systems of /proc/mounts; spaces in names are octal escapes (fstab(5))."""
    mounts: list[NetworkMount] = []
    for line in text.splitlines():
        words = line.split(" ")
        if len(words) < 4 or not NETWORK_FILE_SYSTEM.fullmatch(words[2]):
            continue
        server = server_of(words[0], words[3])
        if server is not None and len(mounts) < _MOST_MOUNTS:
            point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), words[1])
            mounts.append(NetworkMount(printable(point, 64), words[2], server))
    return tuple(mounts)


def probe(host: Host) -> NetworkUse:
    """Read the routes and the mounts."""
    text, mounted = host.read(_ROUTES, _LIMIT_BYTES), host.read(_MOUNTS, _LIMIT_BYTES)
    if isinstance(text, Unknown):
        return NetworkUse(text, text)
    routes = [*parse_routes(text), *parse_routes_v6(known(host.read(_ROUTES_IPV6, _LIMIT_BYTES), ""))]
    defaults = frozenset(
        below for _, names in default_routes(routes) for name in names for below in with_lower(host, name)
    )
    if isinstance(mounted, Unknown):
        return NetworkUse(defaults, mounted)
    found: dict[str, list[str]] = {}
    for mount in parse_mounts(mounted):
        for netdev in carriers(None, mount.server, routes, {}):
            for name in with_lower(host, netdev):
                found.setdefault(name, []).append(f"{mount.point} ({mount.kind})")
    return NetworkUse(defaults, {name: tuple(points) for name, points in found.items()})


NOT_ASKED = NetworkUse(
    Unknown(Reason.NOT_RECORDED, _ROUTES, "not asked"), Unknown(Reason.NOT_RECORDED, _MOUNTS, "not asked")
)
