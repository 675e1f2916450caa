"""Ask the kernel for its RDMA resources through a netlink socket; no privileges needed (rdma(8)).

Where the socket cannot be used, `rdma -j -d resource show` lists them.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

from probes.base.text import parse_json, printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host import rdma_resources as rdma
from probes.host.machine import rdma_netlink
from probes.host.machine.rdma_namespaces import RdmaNamespaces
from probes.host.machine.rdma_netlink import Answer, Command
from probes.host.protocol import CommandOutput

T = TypeVar("T")
SOURCE = "RDMA netlink"
SECONDS = 3.0  # for everything
_NAMESPACES_SECONDS = 2.0  # of it, until the sockets in other network namespaces are open
_NETLINK_RDMA = 20
_DATAGRAM_BYTES = 1 << 16  # the kernel sends at most 32 KiB in one
_MAX_DATAGRAMS = 1024  # of one answer
# Kinds of objects, and the key without which one is left out; old kernels report no numbers of regions.
_NUMBERS = {"qp": "lqpn", "mr": "ifname", "pd": "pdn", "ctx": "ctxn", "cq": "cqn"}
COMMAND_KINDS = tuple(_NUMBERS)
_COMMAND_SECONDS = 2.0
_GREATEST = (1 << 64) - 1
_NO_STATISTICS = "the kernel has no statistics of this port"
_KINDS = (Command.RES_QP_GET, Command.RES_MR_GET, Command.RES_PD_GET, Command.RES_CTX_GET, Command.RES_CQ_GET)
# The others only name owners, and old kernels do not have all of them.
_NEEDED = (Command.RES_QP_GET, Command.RES_MR_GET)
_REASONS = {
    **dict.fromkeys((errno.EPERM, errno.EACCES), Reason.NEEDS_ROOT),
    **dict.fromkeys((errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.ENOENT), Reason.NOT_THERE),
    errno.ETIMEDOUT: Reason.TIMED_OUT,
    errno.ENOTCONN: Reason.IO_ERROR,  # of the connection to a node that is elsewhere
}


class Kernel(Protocol):
    """What answers one round of questions."""

    def ask(self, command: Command, device: int | None = None, port: int | None = None) -> Answer:
        """Return the answer, or raise OSError."""


class Connection(Kernel, Protocol):
    """A kernel that has to be closed."""

    def close(self) -> None:
        """End the round."""


class NetlinkSocket:
    """A netlink socket for one round of questions."""

    def __init__(
        self, seconds: float, opened: socket.socket | None = None, protocol: int = _NETLINK_RDMA
    ) -> None:
        """`opened`: a socket in another network namespace."""
        self._deadline = time.monotonic() + seconds
        self._sequence = 0
        if opened is None:
            kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
            opened = socket.socket(socket.AF_NETLINK, kind, protocol)
        self._socket = opened

    def close(self) -> None:
        """End the round."""
        self._socket.close()

    def ask(self, command: Command, device: int | None = None, port: int | None = None) -> Answer:
        """Return the answer; once more if objects changed while the kernel listed them."""

        def request(sequence: int) -> bytes:
            return rdma_netlink.request(command, sequence, device, port)

        answer = self.exchange(request)
        return self.exchange(request) if answer.is_interrupted else answer

    def exchange(self, request: Callable[[int], bytes]) -> Answer:
        """Return the answer to the request with this sequence number, or raise OSError."""
        self._sequence += 1
        answer = Answer(self._sequence)
        self._socket.sendto(request(self._sequence), (0, 0))
        for _ in range(_MAX_DATAGRAMS):
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            self._socket.settimeout(left)
            datagram, _, flags, sender = self._socket.recvmsg(_DATAGRAM_BYTES)
            if sender[0] != 0:  # not from the kernel
                continue
            answer.is_interrupted |= bool(flags & socket.MSG_TRUNC)
            answer.add(datagram)
            if answer.is_done:
                return answer
        raise OSError(errno.EFBIG, "endless answer")


class ResourceReader:
    """Reads the resources of all devices in this network namespace, and in the others if they can be entered.

    Only for a kernel that has ib_core loaded: opening the socket would load it.
    """

    def __init__(
        self, connect: Callable[[float], Connection] = NetlinkSocket, namespaces: RdmaNamespaces | None = None
    ) -> None:
        self._connect = connect
        self._namespaces = namespaces
        self._parser = rdma_netlink.ResourceParser()

    def read(self, seconds: float = SECONDS, kernel: Kernel | None = None) -> Maybe[rdma.RdmaResources]:
        """Return the resources; late where a NIC's firmware does not answer, for which the kernel waits.

        `kernel`: the one to ask, which is not closed; None: this machine's.
        """
        return self._answered(self._read, seconds, kernel)

    def read_packets(
        self, seconds: float = SECONDS, kernel: Kernel | None = None
    ) -> Maybe[tuple[rdma.PacketNumbers, ...]]:
        """Return the packet numbers of all connected queue pairs; late, and of which kernel, as `read`."""
        return self._answered(self._read_packets, seconds, kernel)

    def read_statistics(
        self, names: Sequence[str], seconds: float = SECONDS, kernel: Kernel | None = None
    ) -> Mapping[str, Maybe[dict[str, int]]]:
        """Return the counters of ports such as "mlx5_0/1"; late, and of which kernel, as `read`."""
        found = self._answered(partial(_statistics, names), seconds, kernel)
        return dict.fromkeys(names, found) if isinstance(found, Unknown) else found

    def _answered(
        self, read: Callable[[Kernel], Maybe[T]], seconds: float, kernel: Kernel | None
    ) -> Maybe[T]:
        try:
            if kernel is not None:
                return read(kernel)
            with closing(self._connect(seconds)) as connection:
                return read(connection)
        except TimeoutError:
            return Unknown(Reason.TIMED_OUT, SOURCE, f"no answer after {seconds:g} s")
        except OSError as error:
            return _unknown(error.errno or 0, error.strerror)

    def _read(self, connection: Kernel) -> Maybe[rdma.RdmaResources]:
        listed = connection.ask(Command.GET)
        if listed.errno:
            return _unknown(listed.errno)
        found = _Objects()
        found.ask(connection, rdma_netlink.devices_of(listed))
        shared = rdma_netlink.shares_namespaces(connection.ask(Command.SYS_GET))
        hidden = self._hidden(shared, found.devices)
        for kernel, devices in self._others(hidden):
            found.ask(kernel, devices)
        if found.devices and len(found.failed) == len(found.devices):
            return _unknown(next(iter(found.failed.values())))
        left = None if hidden is None else tuple(sorted(hidden - found.devices))
        return self._parser.parse(found.whole(), shared, tuple(found.failed), left)

    def _read_packets(self, connection: Kernel) -> Maybe[tuple[rdma.PacketNumbers, ...]]:
        listed = connection.ask(Command.GET)
        if listed.errno:
            return _unknown(listed.errno)
        devices = rdma_netlink.devices_of(listed)
        found = _packets(connection, devices)
        if self._namespaces is None:
            return found
        shared = rdma_netlink.shares_namespaces(connection.ask(Command.SYS_GET))
        hidden = self._hidden(shared, {name for _, name in devices})
        for kernel, others in self._others(hidden):
            if isinstance(found, Unknown):
                break
            more = _packets(kernel, others)
            found = more if isinstance(more, Unknown) else (*found, *more)[: rdma.MAX_OBJECTS]
        return found

    def _hidden(self, shared: bool | None, listed: Collection[str]) -> frozenset[str] | None:
        """Return the devices that only other network namespaces list; None: they are unknown."""
        return self._namespaces.hidden(listed) if shared is False and self._namespaces else None

    def _others(self, hidden: frozenset[str] | None) -> Iterator[tuple[Kernel, list[tuple[int, str]]]]:
        """Yield the kernel as other network namespaces see it, with those of these devices that it lists."""
        if self._namespaces is None or not hidden:
            return
        with closing(self._namespaces.sockets(_NAMESPACES_SECONDS)) as sockets:
            for namespace, opened in sockets:
                kernel = NetlinkSocket(SECONDS, opened)
                listed = rdma_netlink.devices_of(kernel.ask(Command.GET))
                devices = [row for row in listed if row[1] in hidden]
                if devices:
                    self._namespaces.note(namespace)
                    yield kernel, devices
                hidden = hidden.difference(name for _, name in devices)
                if not hidden:
                    return


class _Objects:
    """The answers about the objects of each device, of one round."""

    def __init__(self) -> None:
        self.devices: set[str] = set()
        self.failed: dict[str, int] = {}  # errno by device
        self._answers: dict[tuple[Command, str], Answer] = {}

    def ask(self, kernel: Kernel, devices: list[tuple[int, str]]) -> None:
        """Ask for the objects of devices that this kernel lists."""
        for index, name in devices:
            self.devices.add(name)
            for kind in _KINDS:
                answer = kernel.ask(kind, index)
                if kind in _NEEDED and (answer.errno or answer.is_interrupted):
                    self.failed[name] = answer.errno or errno.EAGAIN
                    break
                self._answers[kind, name] = answer

    def whole(self) -> dict[tuple[Command, str], Answer]:
        """Return the answers of the devices that have not failed."""
        return {key: answer for key, answer in self._answers.items() if key[1] not in self.failed}


def _packets(kernel: Kernel, devices: list[tuple[int, str]]) -> Maybe[tuple[rdma.PacketNumbers, ...]]:
    found: list[rdma.PacketNumbers] = []
    for index, name in devices:
        answer = kernel.ask(Command.RES_QP_GET, index)
        if answer.errno or answer.is_interrupted:
            return _unknown(answer.errno or errno.EAGAIN)
        found += islice(rdma_netlink.packet_numbers(name, answer), rdma.MAX_OBJECTS - len(found))
    return tuple(found)


def _statistics(names: Sequence[str], kernel: Kernel) -> Maybe[Mapping[str, Maybe[dict[str, int]]]]:
    listed = kernel.ask(Command.GET)
    if listed.errno:
        return _unknown(listed.errno)
    indexes = {name: index for index, name in rdma_netlink.devices_of(listed)}
    found: dict[str, Maybe[dict[str, int]]] = {}
    for name in names:
        device, _, port = name.rpartition("/")
        if device not in indexes or not port.isdecimal():
            found[name] = Unknown(Reason.NOT_THERE, SOURCE, "no such port")
            continue
        answer = kernel.ask(Command.STAT_GET, indexes[device], int(port))
        absent = Unknown(_REASONS.get(answer.errno, Reason.NOT_THERE), SOURCE, _NO_STATISTICS)
        found[name] = rdma_netlink.statistics_of(answer) or absent
    return found


def _unknown(number: int, detail: str | None = None) -> Unknown:
    reason = _REASONS.get(number, Reason.DRIVER_ERROR)
    return Unknown(reason, SOURCE, detail or os.strerror(number))


def is_final(answer: Maybe[rdma.RdmaResources]) -> bool:
    """Return whether the `rdma` command would answer no more."""
    return not isinstance(answer, Unknown) or answer.reason in (Reason.TIMED_OUT, Reason.NOT_THERE)


def resources_from_command(
    run: Callable[[Sequence[str], float], Maybe[CommandOutput]],
) -> Maybe[rdma.RdmaResources]:
    """Return the resources that the `rdma` command lists."""
    texts = {}
    not_recorded: Unknown | None = None
    for kind in COMMAND_KINDS:
        output = run(("rdma", "-j", "-d", "resource", "show", kind), _COMMAND_SECONDS)
        if isinstance(output, Unknown):
            if output.reason is not Reason.NOT_RECORDED:
                return output
            not_recorded = output  # a connection learns here what to ask, in one round
        elif output.exit_status == 0:
            texts[kind] = output.stdout
        elif kind in ("qp", "mr"):  # the others only name owners; an old command does not have all of them
            return Unknown(Reason.DRIVER_ERROR, " ".join(output.argv), printable(output.stderr, 200))
    system = run(("rdma", "system", "show"), _COMMAND_SECONDS)
    if not_recorded is not None:
        return not_recorded
    return parse_resources(texts, "" if isinstance(system, Unknown) else system.stdout)


def parse_resources(texts: dict[str, str], system: str = "") -> Maybe[rdma.RdmaResources]:
    """Parse the JSON by kind of object, and the text of `rdma system show`."""
    lists: dict[str, list[dict[str, Any]]] = {}
    left_out = 0
    for kind in COMMAND_KINDS:
        found = _objects(texts.get(kind, "[]"))
        if found is None:
            return Unknown(Reason.MALFORMED, f"rdma -j resource show {kind}", "not the expected JSON")
        lists[kind] = [row for row in found[: rdma.MAX_OBJECTS] if _NUMBERS[kind] in row]
        left_out += max(0, len(found) - rdma.MAX_OBJECTS)
    mode = re.search(r"\bnetns (shared|exclusive)\b", system)
    return rdma.RdmaResources(
        tuple(map(_queue_pair, lists["qp"])),
        tuple(_region(row, at) for at, row in enumerate(lists["mr"])),
        tuple(rdma.ProtectionDomain(*_in_context(row, "pdn"), *_owner(row)) for row in lists["pd"]),
        tuple(
            rdma.RdmaContext(_device(row), _number(row, "ctxn") or 0, *_owner(row)) for row in lists["ctx"]
        ),
        tuple(rdma.CompletionQueue(*_in_context(row, "cqn"), *_owner(row)) for row in lists["cq"]),
        None if mode is None else mode[1] == "shared",
        left_out,
    )


def _objects(text: str) -> list[dict[str, Any]] | None:
    found = parse_json(text.strip() or "[]")
    if not isinstance(found, list):
        return None
    return [row for row in found if isinstance(row, dict) and isinstance(row.get("ifname"), str)]


def _device(row: dict[str, Any]) -> str:
    return printable(row["ifname"], 64)


def _number(row: dict[str, Any], key: str) -> int | None:
    value = row.get(key)
    return value if type(value) is int and 0 <= value <= _GREATEST else None


def _in_context(row: dict[str, Any], key: str) -> tuple[str, int, int | None]:
    """Return the device of an object, its number, and that of its context."""
    return _device(row), _number(row, key) or 0, _number(row, "ctxn")


def _text(row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    return printable(value, 64) if isinstance(value, str) else ""


def _owner(row: dict[str, Any]) -> tuple[int | None, str]:
    """Return the pid, or the name of the kernel module: only objects of the kernel have a name and no pid."""
    pid = _number(row, "pid") or None
    return pid, "" if pid is not None else _text(row, "comm").strip("[]")


def _queue_pair(row: dict[str, Any]) -> rdma.QueuePair:
    pid, kernel_name = _owner(row)
    return rdma.QueuePair(
        device=_device(row),
        number=_number(row, "lqpn") or 0,
        kind=_text(row, "type") or "UNKNOWN",
        state=_text(row, "state") or "UNKNOWN",
        port=_number(row, "port"),
        remote=_number(row, "rqpn"),
        pd=_number(row, "pdn"),
        pid=pid,
        kernel_name=kernel_name,
    )


def _region(row: dict[str, Any], position: int) -> rdma.MemoryRegion:
    pid, kernel_name = _owner(row)
    number = _number(row, "mrn")
    return rdma.MemoryRegion(
        device=_device(row),
        number=position if number is None else number,
        length_bytes=_number(row, "mrlen") or 0,
        pd=_number(row, "pdn"),
        pid=pid,
        kernel_name=kernel_name,
        is_odp="odp" in row or "drv_odp" in row,
    )
