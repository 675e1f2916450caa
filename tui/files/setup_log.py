"""What admins chose during setup: one JSON line for each choice, the newest of each kind counts.

Root's choices are readable by all, so that another admin can go on; a user's own come on top of them.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Protocol

from probes.base.text import printable
from probes.base.unknown import Unknown
from probes.setup.guide import Guide
from probes.setup.step import SetupRecord
from tui.files.append_file import AppendFile
from tui.files.xdg import STATE, own_directory

ROOTS_FILE = "/var/log/gdrtop/setup.jsonl"
PATH, SKIP, UNSKIP, PREPARED, REPORTED = "path", "skip", "unskip", "prepared", "reported"
_READ_BYTES = 256 << 10
_WORD_LIMIT = 500


class SetupLogError(Exception):
    """A choice cannot be saved; the message names the file."""


class SetupLog(Protocol):
    """Where choices are stored."""

    def add(self, kind: str, value: str, step: str = "") -> None:
        """Save a choice; SetupLogError if that fails."""

    def record(self) -> SetupRecord:
        """Return what counts now."""


class DiskSetupLog:
    """The log on disk: root's below /var/log, a user's in the XDG state directory."""

    def __init__(self, path: str | None = None, roots: str = ROOTS_FILE) -> None:
        is_root = os.geteuid() == 0
        own = roots if is_root else os.path.join(own_directory(STATE), "setup.jsonl")
        name = "the setup log"
        self._file = AppendFile(path or own, name, SetupLogError, _READ_BYTES, all_may_read=is_root)
        self._roots = AppendFile(roots, name, SetupLogError, _READ_BYTES, owner=0)

    def add(self, kind: str, value: str, step: str = "") -> None:
        """Append one line and sync it to disk."""
        self._file.append(_line(kind, value, step))

    def record(self) -> SetupRecord:
        """Return root's choices with those of this user on top."""
        shared = [] if self._file.path == self._roots.path else self._roots.lines()
        return record_of([*shared, *self._file.lines()])


class MemorySetupLog:
    """The log of a simulated or recorded node, which lasts as long as the program."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, kind: str, value: str, step: str = "") -> None:
        """Append one line."""
        self._lines.append(_line(kind, value, step))

    def record(self) -> SetupRecord:
        """Return what counts now."""
        return record_of(self._lines)


def remember_boot(log: SetupLog, guide: Guide) -> str:
    """Save the boot in which everything before the reboot is done; return why that failed, or ""."""
    if not guide.is_prepared or isinstance(guide.boot_id, Unknown) or log.record().prepared_in:
        return ""
    try:
        log.add(PREPARED, guide.boot_id)
    except SetupLogError as error:
        return str(error)
    return ""


def _line(kind: str, value: str, step: str) -> str:
    return json.dumps({"kind": kind, "step": step, "value": value}, ensure_ascii=True)


def record_of(lines: list[str]) -> SetupRecord:
    """Return what counts after these lines; lines that are none of ours are left out."""
    record = SetupRecord(skipped={})
    for text in lines:
        try:
            entry = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if not isinstance(entry, dict):
            continue
        kind, step, value = (_word(entry.get(name)) for name in ("kind", "step", "value"))
        skipped = dict(record.skipped or {})
        if kind == PATH:
            record = replace(record, path=value)
        elif kind == SKIP and step:
            record = replace(record, skipped={**skipped, step: value})
        elif kind == UNSKIP:
            skipped.pop(step, None)
            record = replace(record, skipped=skipped)
        elif kind == PREPARED:
            record = replace(record, prepared_in=value)
        elif kind == REPORTED:
            record = replace(record, reported=value)
    return record


def _word(value: object) -> str:
    return printable(value, _WORD_LIMIT) if isinstance(value, str) else ""


def open_setup_log(is_live: bool) -> SetupLog:
    """Return the log of this machine; of a simulated or recorded node, one in memory."""
    return DiskSetupLog() if is_live else MemorySetupLog()
