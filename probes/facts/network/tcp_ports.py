"""TCP ports with a listener (proc(5), /proc/net/tcp)."""

from __future__ import annotations

import re

from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.protocol import Host

_LIMIT_BYTES = 4 << 20
# Local address, local port, a remote address of zeros, state 0A: TCP_LISTEN (include/net/tcp_states.h).
_LISTENER = re.compile(r"^ *\d+: [0-9A-F]{8,32}:([0-9A-F]{4}) [0-9A-F]{8,32}:0000 0A ", re.M)
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


def listening(host: Host) -> Maybe[dict[int, str]]:
    """Return every port with a listener, and the file that shows it."""
    ports: dict[int, str] = {}
    for path in TABLES:
        table = host.read(path, _LIMIT_BYTES)
        if isinstance(table, Unknown):
            if table.reason is Reason.NOT_THERE and path.endswith("6"):  # a kernel without IPv6
                continue
            return table
        for port in _LISTENER.findall(table):
            ports.setdefault(int(port, 16), path)
    return ports


def free_port(host: Host, first: int, most: int = 100) -> Maybe[int]:
    """Return the first port without a listener, among `most` ports from `first` on."""
    taken = listening(host)
    if isinstance(taken, Unknown):
        return taken
    for port in range(first, first + most):
        if port not in taken:
            return port
    return Unknown(Reason.NOT_THERE, TABLES[0], f"all ports from {first} to {first + most - 1} are in use")
