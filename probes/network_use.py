"""Which netdevs carry the default route and network file systems: what NICs are for follows from it.

Routes are those of this network namespace (/proc/net/route, /proc/net/ipv6_route), mounts those of this mount
namespace (/proc/mounts): what a pod has of its own is not in them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from probes.host import Host
from probes.text import printable
from probes.unknown import Maybe, Reason, Unknown

_ROUTES, _ROUTES_IPV6, _MOUNTS = "/proc/net/route", "/proc/net/ipv6_route", "/proc/mounts"
_LIMIT_BYTES = 1 << 20
_MOST_MOUNTS = 64
_MOST_LAYERS = 4  # a VLAN on a bond on a netdev
_UP, _REJECT = 0x0001, 0x0200  # include/uapi/linux/route.h
_NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "lustre", "ceph", "cifs", "smb3", "beegfs", "wekafs", "gpfs")
_IPV4 = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}"


@dataclass(frozen=True)
class NetworkUse:
    """Which netdevs carry the default route and which network file systems."""

    default_routes: Maybe[frozenset[str]]  # netdevs, with those that a bond or VLAN is made of
    mounts: Maybe[Mapping[str, tuple[str, ...]]]  # netdev -> "/data (nfs4)"


@dataclass(frozen=True)
class Route:
    """One IPv4 route of /proc/net/route."""

    netdev: str
    destination: int
    mask: int
    metric: int


@dataclass(frozen=True)
class NetworkMount:
    """A network file system whose server's address is known."""

    point: str
    kind: str
    server: str  # an IPv4 address


def parse_routes(text: str) -> tuple[Route, ...]:
    """Parse /proc/net/route; addresses are hexadecimal in the byte order of the CPU, here little-endian."""
    routes: list[Route] = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) < 8 or not all(re.fullmatch("[0-9A-Fa-f]{1,8}", words[at]) for at in (1, 3, 7)):
            continue
        flags = int(words[3], 16)
        if flags & _UP and not flags & _REJECT:
            metric = int(words[6]) if re.fullmatch("[0-9]{1,10}", words[6]) else 0
            routes.append(Route(printable(words[0], 64), _swapped(words[1]), _swapped(words[7]), metric))
    return tuple(routes)


def _swapped(word: str) -> int:
    return int.from_bytes(bytes.fromhex(word.zfill(8)), "little")


def parse_default_ipv6(text: str) -> tuple[str, ...]:
    """Parse the netdevs of the default routes in /proc/net/ipv6_route."""
    rows = (line.split() for line in text.splitlines())
    return tuple(
        printable(row[9], 64)
        for row in rows
        if len(row) == 10 and row[0].strip("0") == "" and row[1] == "00" and row[9] != "lo"
    )


def parse_mounts(text: str) -> tuple[NetworkMount, ...]:
    """Parse the network file systems of /proc/mounts; spaces in names are octal escapes (fstab(5))."""
    mounts: list[NetworkMount] = []
    for line in text.splitlines():
        words = line.split(" ")
        if len(words) < 4 or words[2] not in _NETWORK_FILE_SYSTEMS:
            continue
        server = re.search(rf"(?:^|,)addr=({_IPV4})(?:,|$)", words[3]) or re.match(rf"({_IPV4})\b", words[0])
        if server is not None and len(mounts) < _MOST_MOUNTS:
            point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), words[1])
            mounts.append(NetworkMount(printable(point, 64), words[2], server[1]))
    return tuple(mounts)


def route_to(address: str, routes: Iterable[Route]) -> str | None:
    """Return the netdev that reaches an IPv4 address: the longest prefix, then the least metric."""
    try:
        number = int(ipaddress.IPv4Address(address))
    except ValueError:
        return None
    fitting = [route for route in routes if number & route.mask == route.destination]
    best = max(fitting, key=lambda route: (route.mask, -route.metric), default=None)
    return None if best is None else best.netdev


def probe(host: Host) -> NetworkUse:
    """Read the routes and the mounts."""
    text, more = host.read(_ROUTES, _LIMIT_BYTES), host.read(_ROUTES_IPV6, _LIMIT_BYTES)
    mounted = host.read(_MOUNTS, _LIMIT_BYTES)
    if isinstance(text, Unknown):
        return NetworkUse(text, text)
    routes = parse_routes(text)
    names = {route.netdev for route in routes if route.mask == 0}
    names.update(() if isinstance(more, Unknown) else parse_default_ipv6(more))
    defaults = frozenset(below for name in names for below in _with_lower(host, name))
    if isinstance(mounted, Unknown):
        return NetworkUse(defaults, mounted)
    found: dict[str, list[str]] = {}
    for mount in parse_mounts(mounted):
        netdev = route_to(mount.server, routes)
        for name in _with_lower(host, netdev) if netdev else ():
            found.setdefault(name, []).append(f"{mount.point} ({mount.kind})")
    return NetworkUse(defaults, {name: tuple(points) for name, points in found.items()})


def _with_lower(host: Host, netdev: str, layers: int = _MOST_LAYERS) -> tuple[str, ...]:
    """Return a netdev and those below it: a bond's members, a VLAN's parent."""
    names = host.names(f"/sys/class/net/{netdev}") if layers and "/" not in netdev else ()
    lower = () if isinstance(names, Unknown) else [name for name in names if name.startswith("lower_")]
    return (
        netdev,
        *(one for name in lower[:16] for one in _with_lower(host, name.removeprefix("lower_"), layers - 1)),
    )


NOT_ASKED = NetworkUse(
    Unknown(Reason.NOT_RECORDED, _ROUTES, "not asked"), Unknown(Reason.NOT_RECORDED, _MOUNTS, "not asked")
)
