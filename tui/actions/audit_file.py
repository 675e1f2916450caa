"""The audit log on disk: appended to, line by line, by its owner alone.

Like the recording's, this file is gdrtop's own and not the node's.
"""

from __future__ import annotations

import os
import stat

from probes.text import printable
from tui.actions.audit import AuditError
from tui.new_file import why

ROOTS_LOG = "/var/log/gdrtop/actions.jsonl"
FULL_BYTES = 8 << 20  # then it is kept once as .1, and a new one is begun
_READ_BYTES = 1 << 20
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def own_log() -> str:
    """The log of whoever runs gdrtop: root's below /var/log, a user's in the XDG state directory."""
    if os.geteuid() == 0:
        return ROOTS_LOG
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # the XDG specification: a relative one is to be ignored
        state = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "gdrtop", "actions.jsonl")


class LogOnDisk:
    """The log at a path; what somebody else could have written is neither added to nor believed."""

    def __init__(self, path: str, owner: int | None = None) -> None:
        self.path = path
        self._owner = os.geteuid() if owner is None else owner

    def append(self, line: str) -> None:
        """Adds one line, on the disk when this returns; AuditError where it cannot be."""
        try:
            self._append(line)
        except (OSError, ValueError) as error:
            raise AuditError(f"the log {printable(self.path)} cannot be written: {why(error)}") from None

    def lines(self) -> list[str]:
        """The newest lines, the oldest first; none where there is no log that can be believed."""
        try:
            return self._tail()
        except (OSError, ValueError):
            return []

    def _append(self, line: str) -> None:
        as_root = os.geteuid() == 0
        os.makedirs(os.path.dirname(self.path), 0o755 if as_root else 0o700, exist_ok=True)
        descriptor = os.open(self.path, _APPEND, 0o644 if as_root else 0o600)
        try:
            size = self._own_file(descriptor)
            if size > FULL_BYTES:
                os.replace(self.path, f"{self.path}.1")
                os.close(descriptor)
                descriptor = os.open(self.path, _APPEND, 0o644 if as_root else 0o600)
            # One write: a line is whole, or is not there.
            content = line.encode("utf-8", "replace") + b"\n"
            if os.write(descriptor, content) != len(content):
                raise OSError(0, "the disk is full")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _tail(self) -> list[str]:
        descriptor = os.open(self.path, _READ)
        try:
            size = self._own_file(descriptor)
            start = max(0, size - _READ_BYTES)
            content = os.pread(descriptor, _READ_BYTES, start)
        finally:
            os.close(descriptor)
        lines = content.decode("utf-8", "replace").split("\n")
        return lines[1:] if start else lines

    def _own_file(self, descriptor: int) -> int:
        """The file's size; OSError where it is not a regular file that only its owner may write."""
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is no regular file")
        if status.st_uid != self._owner or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(0, "others may write it too: look whose it is")
        return status.st_size
