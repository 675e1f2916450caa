"""Ask the kernel for its RDMA resources through a netlink socket; no privileges needed (rdma(8))."""

from __future__ import annotations

import errno
import os
import socket
import time

from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.machine.rdma_netlink import (
    Answer,
    Command,
    ResourceParser,
    devices_of,
    request,
    shares_namespaces,
)
from probes.host.rdma_resources import RdmaResources

SOURCE = "RDMA netlink"
SECONDS = 3.0  # for everything
_NETLINK_RDMA = 20
_DATAGRAM_BYTES = 1 << 16  # the kernel sends at most 32 KiB in one
_MAX_DATAGRAMS = 1024  # of one answer
_KINDS = (
    Command.RES_QP_GET,
    Command.RES_MR_GET,
    Command.RES_PD_GET,
    Command.RES_CTX_GET,
    Command.RES_CQ_GET,
)
# The others only name owners, and old kernels do not have all of them.
_NEEDED = (Command.RES_QP_GET, Command.RES_MR_GET)
_REASONS = {
    errno.EPERM: Reason.NEEDS_ROOT,
    errno.EACCES: Reason.NEEDS_ROOT,
    errno.EPROTONOSUPPORT: Reason.NOT_THERE,
    errno.EAFNOSUPPORT: Reason.NOT_THERE,
    errno.ENOENT: Reason.NOT_THERE,
    errno.ETIMEDOUT: Reason.TIMED_OUT,
}


class _Connection:
    """A netlink socket for one round of questions."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._sequence = 0
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_RDMA)

    def close(self) -> None:
        self._socket.close()

    def ask(self, command: Command, device: int | None = None) -> Answer:
        """Return the answer; once more if objects changed while the kernel listed them."""
        answer = self._ask_once(command, device)
        return self._ask_once(command, device) if answer.is_interrupted else answer

    def _ask_once(self, command: Command, device: int | None) -> Answer:
        self._sequence += 1
        answer = Answer(self._sequence)
        self._socket.sendto(request(command, self._sequence, device), (0, 0))
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
    """Reads the resources of all devices in this network namespace.

    Only for a kernel that has ib_core loaded: opening the socket would load it.
    """

    def __init__(self) -> None:
        self._parser = ResourceParser()

    def read(self, seconds: float = SECONDS) -> Maybe[RdmaResources]:
        """Return the resources; late where a NIC's firmware does not answer, for which the kernel waits."""
        try:
            connection = _Connection(seconds)
        except OSError as error:
            return _unknown(error.errno or 0)
        try:
            return self._read(connection)
        except TimeoutError:
            return Unknown(Reason.TIMED_OUT, SOURCE, f"no answer after {seconds:g} s")
        except OSError as error:
            return _unknown(error.errno or 0)
        finally:
            connection.close()

    def _read(self, connection: _Connection) -> Maybe[RdmaResources]:
        listed = connection.ask(Command.GET)
        if listed.errno:
            return _unknown(listed.errno)
        devices = devices_of(listed)
        failed: dict[str, int] = {}
        answers: dict[tuple[Command, str], Answer] = {}
        for index, name in devices:
            for kind in _KINDS:
                answer = connection.ask(kind, index)
                if kind in _NEEDED and (answer.errno or answer.is_interrupted):
                    failed[name] = answer.errno or errno.EAGAIN
                    break
                answers[kind, name] = answer
        if devices and len(failed) == len(devices):
            return _unknown(next(iter(failed.values())))
        read = {(kind, name): answer for (kind, name), answer in answers.items() if name not in failed}
        shared = shares_namespaces(connection.ask(Command.SYS_GET))
        return self._parser.parse(read, shared, tuple(failed))


def _unknown(number: int) -> Unknown:
    reason = _REASONS.get(number, Reason.DRIVER_ERROR)
    return Unknown(reason, SOURCE, os.strerror(number))
