"""One end of a test on another node, started by SSH with argv lists only; the remote shell gets quoted words.

ssh(1): -tt gives the remote command a terminal, which hangs up when the connection ends, so that nothing
keeps running; BatchMode asks no questions; ServerAlive* detect a dead connection; without ControlMaster no
shared connection outlives its first user.
"""

from __future__ import annotations

import re
import shlex

from probes.bandwidth.model.command import Command, Refused, is_host

_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,31}")
_OPTIONS = (
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
    *("-o", "ControlMaster=no", "-o", "ControlPath=none"),
)


def host_of(peer: str) -> str | None:
    """Return the host of `host` or `user@host`; None if the peer is neither."""
    user, at, host = peer.rpartition("@")
    if at and not _USER.fullmatch(user):
        return None
    return host if is_host(host) else None


def by_ssh(peer: str, command: Command, seconds: float) -> Command | Refused:
    """Return the command to run on the peer; it ends there after `seconds` even if the connection breaks."""
    if host_of(peer) is None:
        return Refused(f"the peer is not a valid host name, address or user@host: {peer[:80]!r}")
    limited = ("timeout", "--foreground", "-k", "5", f"{seconds:.0f}", *command.argv)
    return Command(("ssh", "-tt", *_OPTIONS, "--", peer, shlex.join(limited)), command.tool)
