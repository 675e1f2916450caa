"""What depends on the node's network: SSH sessions, default routes, network file systems, also the root's.

Each is mapped to the netdevs that carry it, through bonds, bridges and VLANs. This is read when an action is
prepared that takes netdevs down. It is never recorded, because it contains addresses of admins. Sockets and
routes are those of gdrtop's own network namespace.

Formats: proc(5), /proc/net/tcp and /proc/PID/mountinfo; sysfs of netdevs, block devices, iSCSI and NVMe.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address

from probes.base.frozen import frozen
from probes.base.text import BDF, join_limited, printable
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.network.routes import (
    NET,
    Address,
    carriers,
    default_routes,
    parse_addresses_v6,
    parse_routes,
    parse_routes_v6,
    with_lower,
)
from probes.host.protocol import Host

_TABLE_BYTES = 8 << 20
_ENVIRONMENT_BYTES = 4 << 20
_MOST_NETDEVS = 4096
_MOST_ANCESTORS = 16
_MOST_LAYERS = 8  # device mapper over RAID over disks
_MOST_SHOWN = 3
_SSH_PORT = 22
_ESTABLISHED = "01"  # include/net/tcp_states.h
_INFINIBAND = "32"  # ARPHRD_INFINIBAND, include/uapi/linux/if_arp.h
NETWORK_FILE_SYSTEM = re.compile(
    r"(?:nfs4?|cifs|smb3|ceph|lustre|9p|afs|beegfs|gpfs|wekafs|fuse\.(?:glusterfs|sshfs))"
)
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\b[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}")


@frozen
class Netdev:
    """A netdev with its own hardware."""

    name: str
    bdf: str  # its PCI function; "" if it is on another bus
    driver: str
    is_infiniband: bool


@frozen
class NetworkDependency:
    """Something that breaks when its netdevs go down."""

    what: str  # "this SSH session (from 10.0.0.5)"
    netdevs: tuple[str, ...]  # "bond0", then all below it; () if unknown


@frozen
class NetworkDependencyFacts:
    """All dependencies, and the hardware that plans may take down."""

    dependencies: tuple[NetworkDependency, ...]
    netdevs: dict[str, Netdev]
    rdma_devices: dict[str, str]  # "mlx5_0" -> BDF
    unread: tuple[Unknown, ...]  # tables that could not be read, so dependencies may be missing


@frozen
class _Connection:
    """An established TCP connection."""

    local: Address
    local_port: int
    peer: Address
    peer_port: int


def probe(host: Host) -> NetworkDependencyFacts:
    """Read /proc/net, /proc/self, /sys/class/net and the root's mount."""
    unread: list[Unknown] = []
    found: list[NetworkDependency] = []

    def table(path: str) -> str:
        text = host.read(path, _TABLE_BYTES)
        if isinstance(text, Unknown) and text.reason is not Reason.NOT_THERE:
            unread.append(text)
        return known(text, "")

    routes = list(parse_routes(table("/proc/net/route")))
    routes.extend(parse_routes_v6(table("/proc/net/ipv6_route")))
    addresses = parse_addresses_v6(table("/proc/net/if_inet6"))

    def add(what: str, netdevs: Iterable[str]) -> None:
        stacks = [with_lower(host, name) for name in dict.fromkeys(netdevs)]
        found.extend(NetworkDependency(what, names) for names in stacks or [()])

    for what, connections in _ssh_sessions(host, table):
        pairs = ((connection.local, connection.peer) for connection in connections)
        add(what, (name for local, peer in pairs for name in carriers(local, peer, routes, addresses)))
    for what, names in default_routes(routes):
        add(what, names)
    for what, peer in _root(host, table):
        add(what, carriers(None, peer, routes, addresses) if peer else ())
    netdevs = {name: netdev for name in _names(host, NET) if (netdev := _netdev(host, name)) is not None}
    devices = _names(host, "/sys/class/infiniband")
    rdma = {name: _bdf(host, f"/sys/class/infiniband/{name}/device") for name in devices}
    return NetworkDependencyFacts(tuple(dict.fromkeys(found)), netdevs, rdma, tuple(unread))


# Netdevs


def _names(host: Host, directory: str) -> tuple[str, ...]:
    return known(host.names(directory), ())[:_MOST_NETDEVS]


def _bdf(host: Host, link: str) -> str:
    """Return the PCI function above a device; for a subfunction, that of its parent."""
    parts = BDF.findall(known(host.resolve(link), ""))
    return parts[-1] if parts else ""


def _netdev(host: Host, name: str) -> Netdev | None:
    base = f"{NET}/{name}"
    if isinstance(host.link(f"{base}/device"), Unknown):
        return None
    driver = known(host.link(f"{base}/device/driver"), "").rpartition("/")[2]
    is_infiniband = known(host.read(f"{base}/type", 64), "") == _INFINIBAND
    return Netdev(printable(name, 32), _bdf(host, f"{base}/device"), printable(driver, 64), is_infiniband)


# SSH


def _ssh_sessions(host: Host, table: Callable[[str], str]) -> Iterator[tuple[str, list[_Connection]]]:
    """Yield the SSH sessions with their connections: this session first, then all others together."""
    own = _own_connections(host)
    ports = {_SSH_PORT, *(port for _, _, port in own)}
    own_peers = {(address, port) for address, port, _ in own}
    mine: list[_Connection] = []
    others: list[_Connection] = []
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for connection in parse_connections(table(path)):
            if connection.local_port in ports and not connection.peer.is_loopback:
                is_own = (connection.peer, connection.peer_port) in own_peers
                (mine if is_own else others).append(connection)
    if mine:
        yield f"this SSH session (from {_peers(mine)})", mine
    if len(others) == 1:
        yield f"{'another' if mine else 'an'} SSH session (from {_peers(others)})", others
    elif others:
        yield f"{len(others)} {'other ' if mine else ''}SSH sessions (from {_peers(others)})", others


def _peers(connections: list[_Connection]) -> str:
    return join_limited((str(connection.peer) for connection in connections), _MOST_SHOWN)


def _own_connections(host: Host) -> set[tuple[Address, int, int]]:
    """Return peer, peer port and local port from SSH_CONNECTION of gdrtop and its ancestors.

    sudo drops the variable, and a shell in tmux may have the one of an earlier login, so the caller must
    check that the connection is established.
    """
    values = [known(host.environment("SSH_CONNECTION"), "")]
    pid = known(host.link("/proc/self"), "")
    for _ in range(_MOST_ANCESTORS):
        parent = re.search(r"^PPid:\s+([1-9][0-9]{0,9})$", known(host.read(f"/proc/{pid}/status"), ""), re.M)
        if parent is None or parent[1] == "1":
            break
        pid = parent[1]
        environ = known(host.read_bytes(f"/proc/{pid}/environ", _ENVIRONMENT_BYTES), b"")
        own = (piece for piece in environ.split(b"\0") if piece.startswith(b"SSH_CONNECTION="))
        values.extend(piece.partition(b"=")[2].decode("ascii", "replace") for piece in own)
    found = set()
    for value in values:
        words = value.split()
        try:
            found.add((ip_address(words[0].partition("%")[0]), int(words[1]), int(words[3])))
        except (IndexError, ValueError):
            continue
    return found


def parse_connections(text: str) -> Iterator[_Connection]:
    """Parse the established connections of /proc/net/tcp or tcp6."""
    for line in text.split("\n"):
        words = line.split()
        if len(words) < 4 or words[3] != _ESTABLISHED:
            continue
        try:
            local, local_port = words[1].split(":")
            peer, peer_port = words[2].split(":")
            addresses = _socket_address(local), _socket_address(peer)
            yield _Connection(addresses[0], int(local_port, 16), addresses[1], int(peer_port, 16))
        except ValueError:
            continue


def _socket_address(word: str) -> Address:
    """Parse 32-bit words, each in the CPU's byte order; an IPv4-mapped address is returned as IPv4."""
    content = bytes.fromhex(word)
    if len(content) == 4:
        return IPv4Address(content[::-1])
    address = IPv6Address(b"".join(content[at : at + 4][::-1] for at in range(0, len(content), 4)))
    return address.ipv4_mapped or address


# The root file system


def _root(host: Host, table: Callable[[str], str]) -> Iterator[tuple[str, Address | None]]:
    """Yield the root file system if it is on the network, with its servers' addresses (None: unknown)."""
    mount = None
    for line in table("/proc/self/mountinfo").split("\n"):
        words = line.split()
        if len(words) > 8 and words[4] == "/" and "-" in words[6:-2]:
            mount = words
    if mount is None:
        return
    kind, source, options = (*mount[mount.index("-", 6) + 1 :], "", "")[:3]
    if NETWORK_FILE_SYSTEM.fullmatch(kind):
        server = server_of(source, options)
        yield _with_server(f"the root file system ({printable(kind, 16)}", server), server
        return
    number, disk = mount[2], source.rpartition("/")[2]
    name = f"/sys/class/block/{disk}" if number.startswith("0:") else f"/sys/dev/block/{number}"
    for kind, server in _block_servers(host, name, _MOST_LAYERS):
        yield _with_server(f"the root file system ({kind}", server), server


def _with_server(text: str, server: Address | None) -> str:
    return f"{text} from {server})" if server else f"{text})"


def server_of(source: str, options: str) -> Address | None:
    """Return the server's address of a mounted network file system; None if only its name is known."""
    named = re.search(r"(?:^|,)addr=([^,]+)", options)
    return _first_address(named[1] if named else source)


def _first_address(text: str) -> Address | None:
    for word in _ADDRESS.findall(text):
        try:
            return ip_address(word)
        except ValueError:
            continue
    return None


def _block_servers(host: Host, device: str, layers: int) -> Iterator[tuple[str, Address | None]]:
    """Yield the servers of a block device, through device mapper and RAID."""
    path = known(host.resolve(device), "")
    slaves = known(host.names(f"{path}/slaves"), ())
    if slaves and layers:
        for slave in slaves[:64]:
            yield from _block_servers(host, f"/sys/class/block/{slave}", layers - 1)
        return
    session = re.search(r"/session(\d{1,6})/", path)
    if session:
        base = f"/sys/class/iscsi_connection/connection{session[1]}:0"
        address = known(host.read(f"{base}/address"), "")
        yield "iSCSI", _first_address(address or known(host.read(f"{base}/persistent_address"), ""))
        return
    if re.search(r"/(?:nbd|rbd)\d{1,4}(?:/|$)", path):
        yield "a network block device", None
        return
    subsystem = re.search(r"/nvme-subsystem/(nvme-subsys\d{1,4})/", f"{path}/")
    if subsystem:
        names = known(host.names(f"/sys/class/nvme-subsystem/{subsystem[1]}"), ())
        controllers = [name for name in names if re.fullmatch(r"nvme\d{1,4}", name)]
    else:
        controllers = re.findall(r"/(nvme\d{1,4})(?=/)", path)[:1]
    for name in controllers[:16]:
        transport = known(host.read(f"/sys/class/nvme/{name}/transport"), "")
        if transport in ("tcp", "rdma"):
            address = known(host.read(f"/sys/class/nvme/{name}/address"), "")
            yield f"NVMe/{transport.upper()}", _first_address(address)


# The netdevs that carry the default route and network file systems, from which the roles of NICs follow.
#
# Routes are those of this network namespace (/proc/net/route, /proc/net/ipv6_route), mounts those of this
# mount namespace (/proc/mounts). Pods have their own, which are not included.

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


def probe_use(host: Host) -> NetworkUse:
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
