"""Ask for the error correction (FEC) of network interfaces through ethtool's netlink; no privileges needed.

net/ethtool/netlink.c has no flag on the operation. Linux 5.13 and newer answer with counts. Numbers are those
of include/uapi/linux/genetlink.h and ethtool_netlink.h.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from itertools import islice

from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.fec import COUNTS, MODES, SOURCE, FecState
from probes.host.machine.rdma_netlink import Answer, attributes_of
from probes.host.machine.rdma_reader import NetlinkSocket

SECONDS = 2.0
GENERIC = 16  # NETLINK_GENERIC, and in it the family that lists the others (GENL_ID_CTRL)
_GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 3, 1, 2
_FEC_GET, _HEADER, _ACTIVE, _STATS = 29, 1, 4, 5
_DEVICE_NAME, _FLAGS, _WITH_COUNTS = 2, 3, 4
_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_REQUEST = struct.Struct("=IHHIIBBxx")  # struct nlmsghdr, struct genlmsghdr
_GENERIC_BYTES = 4  # struct genlmsghdr
_FLAG = struct.Struct("=HHHHI")  # the header, and in it one attribute
_MOST_INTERFACES = 4096
Request = Callable[[int], bytes]
"""Sequence number → a request."""


def read_fec(
    names: Sequence[str], exchange: Callable[[Request], Answer] | None = None
) -> dict[str, Maybe[FecState]]:
    """Return the error correction of interfaces; `exchange`: answers a request, None: this machine's kernel.

    All interfaces are asked for at once. For one by its name, the kernel would look for a module.
    """
    try:
        if exchange is not None:
            return _read(names, exchange)
        with closing(NetlinkSocket(SECONDS, protocol=GENERIC)) as kernel:
            return _read(names, kernel.exchange)
    except TimeoutError:
        return dict.fromkeys(names, Unknown(Reason.TIMED_OUT, SOURCE, f"no answer after {SECONDS:g} s"))
    except OSError as error:
        return dict.fromkeys(names, _unknown(error.errno or 0))


def _read(names: Sequence[str], exchange: Callable[[Request], Answer]) -> dict[str, Maybe[FecState]]:
    families = exchange(families_request)
    family = family_of(families.payloads)
    if family is None:
        number = families.errno or errno.EPROTONOSUPPORT
        return dict.fromkeys(names, _unknown(number))
    answer = exchange(partial(fec_request, family))
    found = parse(answer.payloads)
    absent = Unknown(Reason.NOT_THERE, SOURCE, "the driver does not report the FEC mode")
    why = _unknown(answer.errno) if answer.errno else absent
    return {name: found.get(name, why) for name in names}


def families_request(sequence: int) -> bytes:
    """Return the request for all families of generic netlink."""
    return _request(GENERIC, sequence, _GET_FAMILY)


def fec_request(family: int, sequence: int) -> bytes:
    """Return the request for the error correction of all interfaces, with its counts."""
    header = _FLAG.pack(_FLAG.size, _HEADER | 0x8000, _FLAG.size - 4, _FLAGS, _WITH_COUNTS)
    return _request(family, sequence, _FEC_GET, header)


def _request(family: int, sequence: int, command: int, attributes: bytes = b"") -> bytes:
    length = _REQUEST.size + len(attributes)
    return _REQUEST.pack(length, family, _REQUEST_DUMP, sequence, 0, command, 1) + attributes


def family_of(payloads: Iterable[bytes]) -> int | None:
    """Return the number of ethtool's family; None: the kernel has none."""
    rows = (attributes_of(payload[_GENERIC_BYTES:]) for payload in payloads)
    found = (row.get(_FAMILY_ID, b"") for row in rows if row.get(_FAMILY_NAME) == b"ethtool\0")
    return next((_number(value) for value in found if len(value) == 2), None)


def parse(payloads: Iterable[bytes]) -> dict[str, FecState]:
    """Return the error correction by interface, without what is damaged."""
    found: dict[str, FecState] = {}
    for payload in islice(payloads, _MOST_INTERFACES):
        row = attributes_of(payload[_GENERIC_BYTES:])
        name = attributes_of(row.get(_HEADER, b"")).get(_DEVICE_NAME, b"").partition(b"\0")[0]
        counts = attributes_of(row.get(_STATS, b""))
        # The total comes first, then a number for each lane. Without a number, the driver has no such count.
        totals = {COUNTS[kind]: _number(counts[kind]) for kind in COUNTS if len(counts.get(kind, b"")) >= 8}
        if 0 < len(name) < 16:
            found[os.fsdecode(name)] = FecState(_mode(row.get(_ACTIVE, b"")), totals)
    return found


def _mode(value: bytes) -> Maybe[str]:
    if len(value) != 4:
        return Unknown(Reason.NOT_THERE, SOURCE, "the driver does not name the FEC mode")
    number = _number(value)
    return MODES.get(number) or Unknown(Reason.MALFORMED, SOURCE, f"link mode {number} is no FEC mode")


def _number(value: bytes) -> int:
    return int.from_bytes(value[:8], sys.byteorder)


def _unknown(number: int) -> Unknown:
    if number in (errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.ENOENT):
        return Unknown(Reason.NOT_THERE, SOURCE, "this kernel does not report it (Linux 5.13 does)")
    return Unknown(Reason.IO_ERROR, SOURCE, os.strerror(number))
