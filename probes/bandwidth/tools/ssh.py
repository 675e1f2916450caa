"""A test's end on another node, started by SSH with argv lists only; the far shell gets quoted words.

ssh(1): -tt gives the command a terminal there, which hangs up when the connection ends, so that nothing is
left behind; BatchMode asks no questions; ServerAlive* notice a connection that is dead; no shared connection
(ControlMaster) outlives its first user.
"""

from __future__ import annotations

import re
import shlex

from probes.bandwidth.tools.command import Command, Refused, is_host

_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,31}")
_OPTIONS = (
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
    *("-o", "ControlMaster=no", "-o", "ControlPath=none"),
)


def host_of(peer: str) -> str | None:
    """The host of `host` or `user@host`; None where it is neither."""
    user, at, host = peer.rpartition("@")
    if at and not _USER.fullmatch(user):
        return None
    return host if is_host(host) else None


def by_ssh(peer: str, command: Command, seconds: float) -> Command | Refused:
    """The same command at the peer; there too it ends after `seconds`, whatever becomes of the connection."""
    if host_of(peer) is None:
        return Refused(f"this is no host name, address or user@host: {peer[:80]!r}")
    limited = ("timeout", "--foreground", "-k", "5", f"{seconds:.0f}", *command.argv)
    return Command(("ssh", "-tt", *_OPTIONS, "--", peer, shlex.join(limited)), command.tool)
