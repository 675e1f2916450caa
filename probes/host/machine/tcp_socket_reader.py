"""Ask the kernel for the TCP sockets of all processes through a netlink socket; no privileges needed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from itertools import chain

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.host.machine.rdma_namespaces import can_enter, open_sockets
from probes.host.machine.rdma_netlink import Answer
from probes.host.machine.rdma_reader import NetlinkSocket
from probes.host.protocol import HostBase
from probes.host.tcp_sockets import FAMILIES, SOCK_DIAG, SOURCE, TcpSocket, parse, request
from probes.host.values import PROC_MODULES

SECONDS = 1.0
_MODULE = "/sys/module/tcp_diag"
_BUILTIN_BYTES = 1 << 20


def why_not_asked(host: HostBase) -> Unknown | None:
    """Return why the question would change the node: the kernel loads tcp_diag for it (sock_diag.c)."""
    if not isinstance(host.names(_MODULE), Unknown):
        return None
    modules = host.size(PROC_MODULES)
    if isinstance(modules, Unknown) and modules.reason is Reason.NOT_THERE:  # a kernel without modules
        return None
    release = known(host.read("/proc/sys/kernel/osrelease"), "")
    builtin = host.read(f"/lib/modules/{release}/modules.builtin", _BUILTIN_BYTES)
    if "/tcp_diag.ko" in known(builtin, ""):
        return None
    return Unknown(Reason.NOT_THERE, _MODULE, "tcp_diag is not loaded")


def read_sockets(ask: Callable[[int], Answer] | None = None) -> Maybe[tuple[TcpSocket, ...]]:
    """Return the sockets of IPv4 and IPv6; `ask`: answers for a family, None: this machine's kernel."""
    try:
        if ask is None:
            with closing(NetlinkSocket(SECONDS, protocol=SOCK_DIAG)) as kernel:
                return _sockets(partial(_ask, kernel))
        return _sockets(ask)
    except TimeoutError:
        return Unknown(Reason.TIMED_OUT, SOURCE, f"no answer after {SECONDS:g} s")
    except OSError as error:
        return _unknown(error.errno or 0)


def read_namespace(path: str) -> Maybe[tuple[TcpSocket, ...]]:
    """Return the sockets of another network namespace, which only root can enter."""
    if not can_enter():
        return Unknown(Reason.NEEDS_ROOT, path, "in another network namespace")
    with suppress(OSError), closing(open_sockets([path], SECONDS, SOCK_DIAG)) as opened:
        for found in opened:
            if found is not None:
                with closing(NetlinkSocket(SECONDS, found)) as kernel:
                    return read_sockets(partial(_ask, kernel))
    return Unknown(Reason.IO_ERROR, path, "in another network namespace")


def _ask(kernel: NetlinkSocket, family: int) -> Answer:
    return kernel.exchange(lambda number: request(family, number))


def _sockets(ask: Callable[[int], Answer]) -> Maybe[tuple[TcpSocket, ...]]:
    answers = [ask(family) for family in FAMILIES]
    failed = next((answer.errno for answer in answers if answer.errno), 0)
    return _unknown(failed) if failed else tuple(chain(*(parse(answer.payloads) for answer in answers)))


def _unknown(number: int) -> Unknown:
    reason = Reason.NOT_THERE if number in (errno.ENOENT, errno.EPROTONOSUPPORT) else Reason.IO_ERROR
    return Unknown(reason, SOURCE, os.strerror(number))
