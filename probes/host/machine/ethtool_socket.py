"""Read the counters of network interfaces by ioctl, as `ethtool -S` does, without root (linux/ethtool.h)."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.protocol import ETHTOOL_COUNTERS

SECONDS = 2.0
MAX_COUNTERS = 65536  # of an interface
NAME_BYTES = 32  # ETH_GSTRING_LEN
STATISTICS = 1  # ETH_SS_STATS, the string set
COUNT = struct.Struct("=IIQI")  # struct ethtool_sset_info with the size of one string set
HEADER = struct.Struct("=III")  # struct ethtool_gstrings without its strings
STATS = struct.Struct("=II")  # struct ethtool_stats without its values
_VALUE = struct.Struct("=Q")
_NAME = struct.Struct(f"{NAME_BYTES}s")
_SIOCETHTOOL = 0x8946
_GSTRINGS, _GSTATS, _GSSET_INFO = 0x1B, 0x1D, 0x37
_REQUEST = struct.Struct("=16sQ16x")  # struct ifreq: name, address of the command
# The kernel fills in as many counters as the interface has at that moment, whatever the buffer's size. Adding
# queues adds up to some thousand.
_SPARE_COUNTERS = 16384


Ioctl = Callable[[str, bytes, int], bytes]
"""Interface, command and further bytes → the structure as the kernel leaves it; OSError if refused."""


class EthtoolReader:
    """Reads counters, and keeps for each interface where its counters are."""

    def __init__(self) -> None:
        self._positions: dict[str, tuple[int, Mapping[str, int]]] = {}  # number of counters, positions

    def read(self, names: Sequence[str]) -> Maybe[Mapping[str, Maybe[dict[str, int]]]]:
        """Return the counters of each interface."""
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ioctls:
                ioctl = partial(_ioctl, ioctls.fileno())
                return {name: self.counters(ioctl, name) for name in names}
        except OSError as error:
            return _unknown(error, "ethtool -S")

    def counters(self, ioctl: Ioctl, name: str) -> Maybe[dict[str, int]]:
        """Return the counters of an interface."""
        source = f"ethtool -S {printable(name, 40)}"
        try:
            count = _count(ioctl, name)
            known = self._positions.get(name)
            if known is None or known[0] != count:
                known = self._positions[name] = count, _positions(ioctl, name, count)
            wanted = known[1]
            if not wanted:
                return Unknown(Reason.NOT_THERE, source, "the driver has none of these counters")
            command = STATS.pack(_GSTATS, count)
            answer = ioctl(name, command, (count + _SPARE_COUNTERS) * 8)
        except OSError as error:
            self._positions.pop(name, None)
            return _unknown(error, source)
        if STATS.unpack_from(answer)[1] != count:  # the positions are no longer right
            self._positions.pop(name, None)
            return Unknown(Reason.IO_ERROR, source, "the number of counters has just changed")
        return values(answer[STATS.size : STATS.size + count * 8], wanted)


def _count(ioctl: Ioctl, name: str) -> int:
    answer = ioctl(name, COUNT.pack(_GSSET_INFO, 0, 1 << STATISTICS, 0), 0)
    _, _, sets, count = COUNT.unpack_from(answer)
    if not sets >> STATISTICS & 1 or not count:
        raise OSError(errno.EOPNOTSUPP, "no counters")
    if count > MAX_COUNTERS:
        raise OSError(errno.EFBIG, "too many counters")
    return int(count)


def _positions(ioctl: Ioctl, name: str, count: int) -> Mapping[str, int]:
    command = HEADER.pack(_GSTRINGS, STATISTICS, count)
    answer = ioctl(name, command, (count + _SPARE_COUNTERS) * NAME_BYTES)
    found = min(count, HEADER.unpack_from(answer)[2])
    return positions(answer[HEADER.size : HEADER.size + found * NAME_BYTES])


@lru_cache(maxsize=4)  # NICs of one kind have thousands of counters, with the same names
def positions(strings: bytes) -> Mapping[str, int]:
    """Return the position of each counter that gdrtop uses in a table of names."""
    found: dict[str, int] = {}
    whole = strings[: min(len(strings) // NAME_BYTES, MAX_COUNTERS) * NAME_BYTES]
    for position, (row,) in enumerate(_NAME.iter_unpack(whole)):
        if row[2:3].isdigit():  # of one queue: "rx12_packets"
            continue
        name = row.partition(b"\0")[0].decode("ascii", "replace")
        if ETHTOOL_COUNTERS.fullmatch(name):
            found.setdefault(name, position)
    return found


def values(statistics: bytes, wanted: Mapping[str, int]) -> dict[str, int]:
    """Return the counters at these positions; those beyond the end are left out."""
    size = _VALUE.size
    return {
        name: _VALUE.unpack_from(statistics, position * size)[0]
        for name, position in wanted.items()
        if (position + 1) * size <= len(statistics)
    }


def _ioctl(descriptor: int, name: str, command: bytes, more: int) -> bytes:
    """Return the command's structure as the kernel leaves it, with `more` bytes behind it."""
    # An ioctl on a missing interface would make the kernel look for a module of that name.
    is_name = 0 < len(os.fsencode(name)) < 16 and "/" not in name and name not in (".", "..")
    if not is_name or "\0" in name or not os.path.exists(f"/sys/class/net/{name}"):
        raise OSError(errno.ENOENT, "no such interface")
    buffer = array.array("B", command + bytes(more))
    fcntl.ioctl(descriptor, _SIOCETHTOOL, _REQUEST.pack(os.fsencode(name), buffer.buffer_info()[0]))
    return buffer.tobytes()


def _unknown(error: OSError, source: str) -> Unknown:
    if error.errno in (errno.EPERM, errno.EACCES):
        return Unknown(Reason.NEEDS_ROOT, source)
    if error.errno == errno.ENOENT:
        return Unknown(Reason.NOT_THERE, source, error.strerror or "")
    if error.errno in (errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL):
        return Unknown(Reason.NOT_THERE, source, "the driver has no counters of its own")
    return Unknown(Reason.IO_ERROR, source, error.strerror or "")
