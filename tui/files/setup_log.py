"""What admins chose during setup: one JSON line for each choice, the newest of each kind counts.

Root's choices are readable by all, so that another admin can go on; a user's own come on top of them.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace

from probes.base.text import printable
from probes.base.unknown import Unknown
from probes.setup.step import SetupRecord
from probes.setup.steps.guide import Guide
from tui.files import NotWritten
from tui.files.append_file import AppendFile, objects_of
from tui.files.xdg import STATE, own_directory

ROOTS_FILE = "/var/log/gdrtop/setup.jsonl"
PATH, SKIP, UNSKIP, REPORTED = "path", "skip", "unskip", "reported"
OPEN, PREPARED = "open", "prepared"  # boots: value is the boot id
_READ_BYTES = 256 << 10
_WORD_LIMIT = 500


class SetupLog:
    """Where choices are stored; of a simulated or recorded node, as long as the program lasts."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, kind: str, value: str, step: str = "", by: str = "") -> None:
        """Save a choice, and `by` whom; NotWritten if that fails."""
        self._append(json.dumps({"kind": kind, "step": step, "value": value, "by": by}, ensure_ascii=True))

    def record(self) -> SetupRecord:
        """Return what counts now."""
        return record_of(self._lines)

    def _append(self, line: str) -> None:
        self._lines.append(line)


class DiskSetupLog(SetupLog):
    """The log on disk: root's below /var/log, a user's in the XDG state directory."""

    def __init__(self, path: str | None = None, roots: str = ROOTS_FILE) -> None:
        is_root = os.geteuid() == 0
        own = roots if is_root else os.path.join(own_directory(STATE), "setup.jsonl")
        name = "the setup log"
        self._file = AppendFile(path or own, name, NotWritten, _READ_BYTES, all_may_read=is_root)
        self._roots = AppendFile(roots, name, NotWritten, _READ_BYTES, owner=0)

    def record(self) -> SetupRecord:
        """Return root's choices with those of this user on top."""
        shared = [] if self._file.path == self._roots.path else self._roots.lines()
        return record_of([*shared, *self._file.lines()])

    def _append(self, line: str) -> None:
        self._file.append(line)


def remember_boot(log: SetupLog, guide: Guide) -> str:
    """Save once whether a step before the reboot is open in this boot; return why that failed, or ""."""
    boots = log.record().boots
    was_open = None if isinstance(guide.boot_id, Unknown) else boots.get(guide.boot_id)
    is_open = not guide.is_prepared
    if isinstance(guide.boot_id, Unknown) or was_open or was_open is is_open:
        return ""
    try:
        log.add(OPEN if is_open else PREPARED, guide.boot_id)
    except NotWritten as error:
        return str(error)
    return ""


def record_of(lines: list[str]) -> SetupRecord:
    """Return what counts after these lines; lines that are none of ours are left out."""
    record = SetupRecord(skipped={})
    for entry in objects_of(lines):
        words = (entry.get(name) for name in ("kind", "step", "value", "by"))
        kind, step, value, by = (
            printable(word, _WORD_LIMIT) if isinstance(word, str) else "" for word in words
        )
        skipped = dict(record.skipped or {})
        if kind == PATH:
            record = replace(record, path=value, path_by=by if value else "")
        elif kind == SKIP and step:
            record = replace(record, skipped={**skipped, step: value})
        elif kind == UNSKIP:
            skipped.pop(step, None)
            record = replace(record, skipped=skipped)
        elif kind in (OPEN, PREPARED) and value:
            was_open = record.boots.get(value, False)
            record = replace(record, boots={**record.boots, value: was_open or kind == OPEN})
        elif kind == REPORTED:
            record = replace(record, reported=value)
    return record


def open_setup_log(is_live: bool) -> SetupLog:
    """Return the log of this machine; of a simulated or recorded node, one in memory."""
    return DiskSetupLog() if is_live else SetupLog()
