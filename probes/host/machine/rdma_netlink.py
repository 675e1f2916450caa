"""RDMA netlink messages: requests, and what the kernel answers (include/uapi/rdma/rdma_netlink.h).

Bytes in, dataclasses out; rdma_reader.py exchanges them with the kernel.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from typing import Any, NamedTuple

from probes.base.text import printable
from probes.host import rdma_resources as rdma

Objects = tuple[Any, ...]
MAX_DEVICES = 256
_MAX_NAME = 64  # IB_DEVICE_NAME_MAX
_MAX_COUNTERS = 256  # of a port


class Command(IntEnum):
    """enum rdma_nldev_command, of which gdrtop uses only these."""

    GET = 1
    SYS_GET = 6
    RES_QP_GET = 10
    RES_CQ_GET = 12
    RES_MR_GET = 13
    RES_PD_GET = 14
    STAT_GET = 17
    RES_CTX_GET = 22


# enum rdma_nldev_attr
_DEV_INDEX, _DEV_NAME, _PORT_INDEX, _NETNS_MODE = 1, 2, 3, 66
_LQPN, _RQPN, _RQ_PSN, _SQ_PSN, _TYPE, _STATE, _PID, _KERN_NAME = 21, 22, 23, 24, 26, 27, 28, 29
_HWCOUNTERS, _HWCOUNTER, _HWCOUNTER_NAME, _HWCOUNTER_VALUE = 80, 81, 82, 83
_MRLEN, _DRIVER, _DRIVER_ENTRY, _DRIVER_STRING, _PDN, _CQN, _MRN, _CTXN = 45, 52, 53, 54, 60, 61, 62, 64
# The table of objects in an answer, and an entry of the table.
_TABLES = {
    Command.RES_QP_GET: (19, 20),
    Command.RES_CQ_GET: (35, 36),
    Command.RES_MR_GET: (40, 41),
    Command.RES_PD_GET: (46, 47),
    Command.RES_CTX_GET: (86, 87),
}
# enum ib_qp_type and enum ib_qp_state, with the names of `rdma resource show qp`
_QP_TYPES = dict(enumerate(("SMI", "GSI", "RC", "UC", "UD", "RAW_IPV6", "RAW_ETHERTYPE")))
_QP_TYPES |= {8: "RAW_PACKET", 9: "XRC_INI", 10: "XRC_TGT", 255: "DRIVER"}
_QP_STATES = dict(enumerate(("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")))

_MESSAGE = struct.Struct("=IHHII")  # length, type, flags, sequence, port ID (struct nlmsghdr)
_ATTRIBUTE = struct.Struct("=HH")  # length, type (struct nlattr)
_unpack_attribute = _ATTRIBUTE.unpack_from
_ERRNO = struct.Struct("=i")
_MAX_ERRNO = 4095
_ATTRIBUTE_TYPE = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER
_RDMA_NL_NLDEV = 5
_NLM_F_REQUEST = 0x1
_NLM_F_DUMP_INTR = 0x10
_NLM_F_DUMP = 0x300
_NLMSG_MIN_TYPE, _NLMSG_MAX_GENERIC = 16, 1023  # GENL_MAX_ID
_NLMSG_ERROR, _NLMSG_DONE, _NLMSG_OVERRUN = 2, 3, 4


# Without NLM_F_DUMP: the answer has one message and no end.
_OF_ONE_MESSAGE = (Command.SYS_GET, Command.STAT_GET)


def request(command: Command, sequence: int, device: int | None = None, port: int | None = None) -> bytes:
    """Return a request: all devices, the objects of one, counters of a port, or settings of the RDMA core."""
    attributes = b"".join(
        _ATTRIBUTE.pack(8, kind) + struct.pack("=I", number)
        for kind, number in ((_DEV_INDEX, device), (_PORT_INDEX, port))
        if number is not None
    )
    flags = _NLM_F_REQUEST | (0 if command in _OF_ONE_MESSAGE else _NLM_F_DUMP)
    kind = _RDMA_NL_NLDEV << 10 | command
    return _MESSAGE.pack(_MESSAGE.size + len(attributes), kind, flags, sequence, 0) + attributes


@dataclass
class Answer:
    """The answer to one request, collected from its datagrams."""

    sequence: int
    payloads: list[bytes] = field(default_factory=list)
    is_done: bool = False
    is_interrupted: bool = False  # objects changed meanwhile, so that some may be missing
    errno: int = 0

    def add(self, datagram: bytes) -> None:
        """Add the messages of a datagram."""
        at = 0
        while len(datagram) - at >= _MESSAGE.size:
            length, kind, flags, sequence, _ = _MESSAGE.unpack_from(datagram, at)
            if not _MESSAGE.size <= length <= len(datagram) - at:
                self.is_interrupted = True
                return
            payload = datagram[at + _MESSAGE.size : at + length]
            at += (length + 3) & ~3
            if sequence != self.sequence:
                continue
            if flags & _NLM_F_DUMP_INTR or kind == _NLMSG_OVERRUN:
                self.is_interrupted = True
            if kind in (_NLMSG_ERROR, _NLMSG_DONE):
                self.is_done = True
                if len(payload) >= _ERRNO.size:
                    self.errno = min(abs(_ERRNO.unpack_from(payload)[0]), _MAX_ERRNO)
            elif kind >> 10 == _RDMA_NL_NLDEV:
                self.payloads.append(payload)
                self.is_done = self.is_done or kind & 0x3FF in _OF_ONE_MESSAGE
            elif _NLMSG_MIN_TYPE <= kind <= _NLMSG_MAX_GENERIC:  # sockets, or a family of generic netlink
                self.payloads.append(payload)


def devices_of(answer: Answer) -> list[tuple[int, str]]:
    """Return the index and name of each device."""
    rows = (attributes_of(payload) for payload in answer.payloads[:MAX_DEVICES])
    named = (row for row in rows if _DEV_INDEX in row and _DEV_NAME in row)
    return [(_integer(row[_DEV_INDEX]), _text(row[_DEV_NAME])) for row in named]


def shares_namespaces(answer: Answer) -> bool | None:
    """Return whether all network namespaces see all devices; None if the kernel does not report it."""
    for payload in answer.payloads:
        mode = attributes_of(payload).get(_NETNS_MODE)
        if mode is not None:
            return bool(_integer(mode))
    return None


def statistics_of(answer: Answer) -> dict[str, int]:
    """Return the counters of a port by name (nldev.c, stat_get_doit_default_counter)."""
    found: dict[str, int] = {}
    for payload in answer.payloads:
        for kind, table in _pieces(payload):
            for inner, entry in islice(_pieces(table), _MAX_COUNTERS) if kind == _HWCOUNTERS else ():
                row = attributes_of(entry) if inner == _HWCOUNTER else {}
                if _HWCOUNTER_NAME in row and _HWCOUNTER_VALUE in row:
                    found[_text(row[_HWCOUNTER_NAME])] = _integer(row[_HWCOUNTER_VALUE])
    return found


class _Part(NamedTuple):
    """The objects of one kind and device."""

    payloads: list[bytes]
    objects: Objects
    left_out: int


class ResourceParser:
    """Parses the answers of all devices, round by round; objects of the same bytes are not built again."""

    def __init__(self) -> None:
        self._before: dict[tuple[Command, str], _Part] = {}

    def parse(
        self,
        answers: Mapping[tuple[Command, str], Answer],
        shared: bool | None,
        unread: tuple[str, ...],
        hidden: tuple[str, ...] | None = None,
    ) -> rdma.RdmaResources:
        """Return the objects in the answers, which are by command and device."""
        parts = {key: self._part(*key, answer.payloads) for key, answer in answers.items()}
        self._before = parts
        found: dict[Command, Objects] = dict.fromkeys(_TABLES, ())
        left_out = 0
        for (command, _), part in parts.items():
            objects = found[command] + part.objects
            found[command] = objects[: rdma.MAX_OBJECTS]
            left_out += part.left_out + max(0, len(objects) - rdma.MAX_OBJECTS)
        return rdma.RdmaResources(
            found[Command.RES_QP_GET],
            found[Command.RES_MR_GET],
            found[Command.RES_PD_GET],
            found[Command.RES_CTX_GET],
            found[Command.RES_CQ_GET],
            shared,
            left_out,
            unread,
            hidden,
        )

    def _part(self, command: Command, device: str, payloads: list[bytes]) -> _Part:
        before = self._before.get((command, device))
        if before is not None and before.payloads == payloads:
            return before
        objects = _objects(command, device, payloads)
        return _Part(payloads, tuple(islice(objects, rdma.MAX_OBJECTS)), sum(1 for _ in objects))


def _objects(command: Command, device: str, payloads: list[bytes]) -> Iterator[Any]:
    for position, attributes in enumerate(_entries(command, payloads)):
        if command is Command.RES_QP_GET:
            yield _queue_pair(device, attributes)
        elif command is Command.RES_MR_GET:
            yield _region(device, attributes, position)
        elif command is Command.RES_PD_GET and _PDN in attributes:
            number, context = _integer(attributes[_PDN]), _optional(attributes, _CTXN)
            yield rdma.ProtectionDomain(device, number, context, *_owner(attributes))
        elif command is Command.RES_CTX_GET and _CTXN in attributes:  # absent: a context of the kernel
            yield rdma.RdmaContext(device, _integer(attributes[_CTXN]), *_owner(attributes))
        elif command is Command.RES_CQ_GET and _CQN in attributes:
            number, context = _integer(attributes[_CQN]), _optional(attributes, _CTXN)
            yield rdma.CompletionQueue(device, number, context, *_owner(attributes))


def _entries(command: Command, payloads: list[bytes]) -> Iterator[dict[int, bytes]]:
    table, entry = _TABLES[command]
    for payload in payloads:
        for kind, content in _pieces(payload):
            if kind == table:
                yield from (attributes_of(piece) for inner, piece in _pieces(content) if inner == entry)


def _pieces(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and payload of each attribute, up to the first one that does not fit."""
    at, end = 0, len(content)
    while end - at >= 4:
        length, kind = _ATTRIBUTE.unpack_from(content, at)
        if not 4 <= length <= end - at:
            return
        yield kind & _ATTRIBUTE_TYPE, content[at + 4 : at + length]
        at += (length + 3) & ~3


def attributes_of(content: bytes) -> dict[int, bytes]:
    """Return the payloads of attributes by type, up to the first one that does not fit."""
    # Like dict(_pieces(content)), in two thirds of the time: a busy node has thousands of objects.
    found = {}
    at, end = 0, len(content)
    while end - at >= 4:
        length, kind = _unpack_attribute(content, at)
        if not 4 <= length <= end - at:
            break
        found[kind & _ATTRIBUTE_TYPE] = content[at + 4 : at + length]
        at += (length + 3) & ~3
    return found


def _integer(value: bytes) -> int:
    return int.from_bytes(value[:8], sys.byteorder)


def _optional(attributes: dict[int, bytes], kind: int) -> int | None:
    value = attributes.get(kind)
    return None if value is None else int.from_bytes(value[:8], sys.byteorder)


def _text(value: bytes) -> str:
    return printable(value.partition(b"\0")[0].decode("utf-8", "replace"), _MAX_NAME)


def _owner(attributes: dict[int, bytes]) -> tuple[int | None, str]:
    name = attributes.get(_KERN_NAME)
    return _optional(attributes, _PID) or None, "" if name is None else _text(name)


def _queue_pair(device: str, attributes: dict[int, bytes]) -> rdma.QueuePair:
    pid, kernel_name = _owner(attributes)
    return rdma.QueuePair(
        device=device,
        number=_optional(attributes, _LQPN) or 0,
        kind=_QP_TYPES.get(_integer(attributes.get(_TYPE, b"\xfe")), "UNKNOWN"),
        state=_QP_STATES.get(_integer(attributes.get(_STATE, b"\xfe")), "UNKNOWN"),
        port=_optional(attributes, _PORT_INDEX),
        remote=_optional(attributes, _RQPN),
        pd=_optional(attributes, _PDN),
        pid=pid,
        kernel_name=kernel_name,
    )


def packet_numbers(device: str, answer: Answer) -> Iterator[rdma.PacketNumbers]:
    """Yield those of queue pairs that a process has connected (nldev.c, fill_res_qp_entry_query)."""
    for attributes in _entries(Command.RES_QP_GET, answer.payloads):
        pair = _queue_pair(device, attributes)
        sent, received = _optional(attributes, _SQ_PSN), _optional(attributes, _RQ_PSN)
        is_connected = pair.kind == "RC" and pair.is_connected and not pair.kernel_name
        if is_connected and sent is not None and received is not None:
            yield rdma.PacketNumbers(device, pair.number, sent, received, pair.pid)


def _region(device: str, attributes: dict[int, bytes], position: int) -> rdma.MemoryRegion:
    pid, kernel_name = _owner(attributes)
    number = _optional(attributes, _MRN)
    return rdma.MemoryRegion(
        device=device,
        number=position if number is None else number,  # kernels before 5.1 report none
        length_bytes=_optional(attributes, _MRLEN) or 0,
        pd=_optional(attributes, _PDN),
        pid=pid,
        kernel_name=kernel_name,
        is_odp=_DRIVER in attributes and _is_odp(attributes[_DRIVER]),
    )


def _is_odp(content: bytes) -> bool:
    """Return whether the driver names "odp", as mlx5 does for regions with on-demand paging."""
    for kind, piece in _pieces(content):
        if kind == _DRIVER_STRING and piece.rstrip(b"\0") == b"odp":
            return True
        if kind == _DRIVER_ENTRY and any(text.rstrip(b"\0") == b"odp" for _, text in _pieces(piece)):
            return True
    return False
