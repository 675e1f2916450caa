"""The audit log on disk."""

from __future__ import annotations

import os

from tui.actions.audit_log import AuditError
from tui.files.append_file import LinesFile
from tui.files.xdg import STATE, own_directory

ROOTS_LOG = "/var/log/gdrtop/actions.jsonl"
_READ_BYTES = 1 << 20


def own_log() -> str:
    """The log of whoever runs gdrtop: root's below /var/log, a user's in the XDG state directory."""
    return ROOTS_LOG if os.geteuid() == 0 else os.path.join(own_directory(STATE), "actions.jsonl")


class LogOnDisk(LinesFile):
    """The log at a path: root's may be read by all. AuditError where it cannot be added to."""

    def __init__(self, path: str, owner: int | None = None) -> None:
        super().__init__(path, "the log", AuditError, _READ_BYTES, owner, all_may_read=os.geteuid() == 0)
