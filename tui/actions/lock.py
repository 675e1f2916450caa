"""One gdrtop acts or measures at a time on a node, whoever runs it: changes spoil what is measured."""

from __future__ import annotations

import errno
import socket
import struct

# An abstract socket (unix(7)): taken by whoever binds it, root or not, given back by the kernel when its
# owner ends in whatever way, and no file is left behind.
NODE_LOCK = "\0gdrtop-actions"
_CREDENTIALS = struct.Struct("3i")  # SO_PEERCRED: pid, uid, gid


class LockTaken(Exception):
    """Another gdrtop is acting; the message says which."""


class ActionLock:
    """Held from entering to leaving the context; LockTaken where somebody else has it."""

    def __init__(self, name: str = NODE_LOCK) -> None:
        self._name = name
        self._socket: socket.socket | None = None

    def __enter__(self) -> ActionLock:
        taken = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            taken.bind(self._name)
            taken.listen()
        except OSError as error:
            taken.close()
            if error.errno != errno.EADDRINUSE:
                raise LockTaken(f"the lock cannot be taken: {error.strerror}") from None
            raise LockTaken(
                f"another gdrtop is acting or measuring on this node ({self._holder()})"
            ) from None
        self._socket = taken
        return self

    @property
    def descriptor(self) -> int:
        """For a child: while it runs, the lock stays taken, even where gdrtop has been killed."""
        return self._socket.fileno() if self._socket else -1

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _holder(self) -> str:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as asking:
            asking.settimeout(0.5)
            try:
                asking.connect(self._name)
                told = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            except OSError:
                return "it has just ended"
        pid, uid, _ = _CREDENTIALS.unpack(told)
        return f"pid {pid}, uid {uid}"
