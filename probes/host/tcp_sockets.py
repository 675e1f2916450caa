"""The TCP sockets of all processes, with the bytes that each has carried, in the messages of netlink.

Anyone may ask about all sockets of a network namespace (sock_diag(7)). Offsets and numbers are those of
struct nlmsghdr (include/uapi/linux/netlink.h), struct inet_diag_req_v2 and inet_diag_msg (inet_diag.h beside
it), and struct tcp_info (tcp.h beside it), which kernels only extend at its end.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Unknown
from probes.host.values import Files

SOURCE = "sock_diag"
LEAST_BYTES = 1 << 20
"""A socket that has carried less is left out: a node has thousands, and few of them carry data."""
FAMILIES = _IPV4, _IPV6 = 2, 10  # AF_INET, AF_INET6
_TCP = 6  # IPPROTO_TCP
SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY = 20  # SOCK_DIAG_BY_FAMILY
_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_INFO = 2  # INET_DIAG_INFO: an attribute with struct tcp_info
_ESTABLISHED = 1 << 1  # TCP_ESTABLISHED
# Header; family, protocol, attributes to add (bit INET_DIAG_INFO - 1), padding, states, any socket.
_REQUEST = struct.Struct("=IHHIIBBBxI48x")
# Family, then behind state, timer and retransmissions: both ports; addresses; interface, cookie, expiry and
# queues; uid; inode.
_SOCKET = struct.Struct("=B3x2s2s16s16s24xII")
_ATTRIBUTE = struct.Struct("=HH")
_BYTES = struct.Struct("=QQ")  # tcpi_bytes_acked, tcpi_bytes_received: Linux 4.2
_BYTES_AT = 120
_MOST_OPEN_FILES = 4096  # of a process
_OPEN_SOCKET = re.compile(r"socket:\[([0-9]{1,20})\]")
_MAPPED = bytes(10) + b"\xff\xff"  # an IPv4 address in a socket of IPv6 (RFC 4291, 2.5.5.2)


@frozen
class TcpSocket:
    """An established connection; addresses are text, an IPv4 address in IPv6 is the IPv4 address."""

    inode: int  # as in /proc/PID/fd: socket:[INODE]
    uid: int
    local: str
    local_port: int
    remote: str
    remote_port: int
    bytes_acked: int  # sent, and acknowledged by the peer
    bytes_received: int

    @property
    def is_loopback(self) -> bool:
        """Whether the other end is on this node by its address; a recording may have any text for one."""
        try:
            return ip_address(self.remote).is_loopback
        except ValueError:
            return False

    @property
    def bytes(self) -> int:
        """Bytes in both directions since it was connected."""
        return self.bytes_acked + self.bytes_received


def request(family: int, sequence: int) -> bytes:
    """Return the request for all established TCP sockets of AF_INET or AF_INET6."""
    head = (_REQUEST.size, _BY_FAMILY, _REQUEST_DUMP, sequence, 0)
    return _REQUEST.pack(*head, family, _TCP, 1 << _INFO - 1, _ESTABLISHED)


def parse(payloads: Iterable[bytes]) -> Iterator[TcpSocket]:
    """Yield the sockets in the messages of an answer, without what is damaged or of another kind."""
    for payload in payloads:
        if len(payload) < _SOCKET.size:
            continue
        carried = _carried(payload)
        if carried is None or sum(carried) < LEAST_BYTES:
            continue
        family, local_port, remote_port, local, remote, uid, inode = _SOCKET.unpack_from(payload)
        if family in FAMILIES:
            yield TcpSocket(
                inode,
                uid,
                _address(family, local),
                int.from_bytes(local_port, "big"),
                _address(family, remote),
                int.from_bytes(remote_port, "big"),
                *carried,
            )


def _carried(payload: bytes) -> tuple[int, int] | None:
    """Return the bytes acknowledged and received; None: an old kernel, or damaged."""
    at, end = _SOCKET.size, len(payload)
    while end - at >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(payload, at)
        if not _ATTRIBUTE.size <= length <= end - at:
            return None
        first = at + _ATTRIBUTE.size + _BYTES_AT
        if kind == _INFO:
            return _BYTES.unpack_from(payload, first) if first + _BYTES.size <= at + length else None
        at += (length + 3) & ~3
    return None


def _address(family: int, content: bytes) -> str:
    if family == _IPV4:
        return str(IPv4Address(content[:4]))
    if content.startswith(_MAPPED):
        return str(IPv4Address(content[-4:]))
    return str(IPv6Address(content))


def read_socket_inodes(host: Files, pids: Sequence[int]) -> Mapping[int, Maybe[tuple[int, ...]]]:
    """Return the inodes of each process's sockets, sorted; only its user and root can read them."""
    return {pid: _inodes(host, f"/proc/{pid}/fd") for pid in pids}


def _inodes(host: Files, path: str) -> Maybe[tuple[int, ...]]:
    names = host.names(path)
    if isinstance(names, Unknown):
        return names
    links = (host.link(f"{path}/{name}") for name in names[:_MOST_OPEN_FILES])
    found = (_OPEN_SOCKET.fullmatch(link) for link in links if not isinstance(link, Unknown))
    return tuple(sorted({int(match[1]) for match in found if match}))
