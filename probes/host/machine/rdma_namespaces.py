"""RDMA devices in other network namespaces, those of pods for example.

In exclusive mode (rdma-system(8)) netlink lists the devices of the namespace in which its socket was opened
(drivers/infiniband/core/device.c, ib_enum_all_devs). Their character devices are listed in every namespace:
the class infiniband_verbs has no namespaces (drivers/infiniband/core/uverbs_main.c).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import closing, suppress

from probes.base.text import printable
from probes.host.machine import namespace_child
from probes.host.machine.namespace_child import NETLINK_RDMA
from probes.host.values import VERBS

NAMED = "/run/netns"  # ip-netns(8) and container runtimes mount namespaces there
MOST_NAMESPACES = 512
_SEARCH_SECONDS = 10.0  # between two searches for devices that were not found
_NAME_BYTES = 64  # IB_DEVICE_NAME_MAX
_SYS_ADMIN = 1 << 21  # include/uapi/linux/capability.h
OpenSockets = Callable[[Sequence[str], float], Generator[socket.socket | None, None, None]]
Opened = Generator[tuple[str, socket.socket], None, None]


def open_sockets(
    paths: Sequence[str], seconds: float, protocol: int = NETLINK_RDMA
) -> Generator[socket.socket | None, None, None]:
    """Yield a netlink socket in each network namespace; None: it could not be entered.

    The caller closes each at once: it keeps the namespace of an ended container alive, with its devices.
    """
    deadline = time.monotonic() + seconds
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            program = [sys.executable, "-I", "-S", namespace_child.__file__, str(protocol), *paths]
            null = subprocess.DEVNULL
            child = subprocess.Popen(program, stdin=null, stdout=theirs.fileno(), stderr=null, cwd="/")
        try:
            for _ in paths:
                ours.settimeout(max(0.001, deadline - time.monotonic()))
                message, descriptors, _, _ = socket.recv_fds(ours, 4, 1)
                if not message:
                    return
                for descriptor in descriptors:
                    os.set_inheritable(descriptor, False)
                yield socket.socket(fileno=descriptors[0]) if descriptors else None
        finally:
            child.kill()
            child.wait()


def can_enter(status: str = "/proc/self/status") -> bool:
    """Return whether this process may enter other namespaces; root in a container or a service may not."""
    with suppress(OSError, StopIteration, ValueError), open(status, encoding="ascii") as file:
        line = next(line for line in file if line.startswith("CapEff:"))
        return bool(int(line.split(":")[1], 16) & _SYS_ADMIN)
    return False


class RdmaNamespaces:
    """Finds the namespaces of the devices that netlink does not list here, and opens sockets in them."""

    def __init__(
        self,
        can_enter: bool,
        root: str = "/",
        open_sockets: OpenSockets = open_sockets,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`can_enter`: it is in vain without CAP_SYS_ADMIN (setns(2))."""
        self._can_enter, self._root = can_enter, root.rstrip("/")
        self._open, self._clock = open_sockets, clock
        self._noted: list[str] = []
        self._searched_at: float | None = None

    def hidden(self, listed: Collection[str]) -> frozenset[str] | None:
        """Return the devices that only other namespaces list; None: they are unknown."""
        directory = self._root + VERBS
        found = set()
        try:
            for name in os.listdir(directory):
                if name.startswith("uverbs"):
                    with suppress(FileNotFoundError), open(f"{directory}/{name}/ibdev", "rb") as file:
                        text = file.read(_NAME_BYTES).decode("utf-8", "replace")
                        found.add(printable(text.rstrip("\n"), _NAME_BYTES))
        except OSError:
            return None
        return frozenset(found.difference(listed))

    def sockets(self, seconds: float) -> Opened:
        """Yield the path of each other namespace and a netlink socket in it; first those that were noted.

        The caller stops when it has found all devices, and notes each namespace that has some.
        """
        if not self._can_enter:
            return
        deadline = self._clock() + seconds
        noted, self._noted = self._noted, []
        yield from self._opened(noted, deadline)
        now = self._clock()
        # Its process may have ended while others of the namespace live on.
        is_lost = len(self._noted) < len(noted)
        if is_lost or self._searched_at is None or now - self._searched_at >= _SEARCH_SECONDS:
            self._searched_at = now
            left = [path for path in self._all() if path not in self._noted]
            yield from self._opened(left[:MOST_NAMESPACES], deadline)

    def note(self, path: str) -> None:
        """Begin with this namespace the next time."""
        self._noted.append(path)

    def _opened(self, paths: list[str], deadline: float) -> Opened:
        left = deadline - self._clock()
        if not paths or left <= 0:
            return
        # In time or not, what this namespace lists is known; the other devices are named as hidden.
        with suppress(TimeoutError), closing(self._open(paths, left)) as opened:
            for path, kernel in zip(paths, opened, strict=False):
                if kernel is not None:
                    with kernel:
                        yield path, kernel

    def _all(self) -> list[str]:
        """Return a path of each other network namespace: of its first process, or its mount."""
        processes = sorted(int(name) for name in self._names("/proc") if name.isdecimal())
        paths = [f"{self._root}/proc/{pid}/ns/net" for pid in processes]
        paths += [f"{self._root}{NAMED}/{name}" for name in self._names(NAMED)]
        seen = {_identity(f"{self._root}/proc/self/ns/net"), None}
        found = []
        for path in paths:
            identity = _identity(path)
            if identity not in seen:
                seen.add(identity)
                found.append(path)
        return found

    def _names(self, directory: str) -> list[str]:
        with suppress(OSError):
            return sorted(os.listdir(self._root + directory))
        return []


def _identity(path: str) -> tuple[int, int] | None:
    with suppress(OSError):
        found = os.stat(path)
        return found.st_dev, found.st_ino
    return None
