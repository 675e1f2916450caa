"""What has changed on this node since it last worked: its facts are saved while it is READY or ACTIVE."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Union

from probes.base.origin import Source
from probes.base.text import printable
from probes.base.unknown import Reason, Unknown, known
from probes.checks.judgment import Judgment
from probes.facts.node import host_name
from probes.snapshot.examination import Examination
from tui.files import NotWritten
from tui.files.read_file import read_small
from tui.files.xdg import STATE, own_directory

if TYPE_CHECKING:  # loaded once there is something to save or to compare
    from probes.fleet.compare import Changes
    from probes.fleet.summary import NodeSummary


# A home directory may be shared by many nodes. The time of the last such check is the file's own time: most
# checks find the same facts, and then write nothing.

ROOTS_DIRECTORY = "/var/lib/gdrtop/last-ok"
MOST_BYTES = 4 << 20
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_MOST_NAME = 100


def last_ok_directory() -> str:
    """Return where the files are: root's below /var/lib, a user's in the XDG state directory; "": nowhere."""
    if os.geteuid() == 0:
        return ROOTS_DIRECTORY
    state = own_directory(STATE)
    return state and os.path.join(state, "last-ok")


class LastOkFile:
    """The file of one node; where nothing can be written, nothing is."""

    def __init__(self, hostname: str) -> None:
        self._directory = last_ok_directory()
        name = re.sub(r"[^A-Za-z0-9._-]", "_", hostname)[:_MOST_NAME]
        self.path = os.path.join(self._directory, f"{name}.json") if self._directory and name else ""

    def confirm(self, begin: bytes, at: float) -> bool:
        """Note that a file with this begin was right at `at`, in seconds since 1970; return whether it is."""
        if not self.path:
            return False
        try:
            descriptor = os.open(self.path, _READ)
        except OSError:
            return False
        try:
            is_right = os.pread(descriptor, len(begin), 0) == begin
            if is_right:
                with suppress(OSError):  # read-only: the time stays that of an earlier check
                    os.utime(descriptor, (at, at))
            return is_right
        except OSError:  # not a regular file
            return False
        finally:
            os.close(descriptor)

    def save(self, content: bytes, at: float) -> None:
        """Write the file whole, for its owner only; or raise NotWritten."""
        from tui.files.new_file import NewFile, make_directory, why, why_not_as_root

        if not self.path or len(content) > MOST_BYTES or why_not_as_root(self._directory):
            raise NotWritten(self.path)
        try:
            make_directory(self._directory)
            NewFile(self.path, replaces=True).save(content)
            os.utime(self.path, (at, at), follow_symlinks=False)
        except OSError as error:
            raise NotWritten(why(error)) from None

    def read(self) -> tuple[bytes, float] | None:
        """Return the content, and the time in seconds since 1970; None: there is no file.

        OSError: it cannot be read.
        """
        if not self.path:
            return None
        try:
            content = read_small(self.path, MOST_BYTES, "the facts of a node")
            return content, os.stat(self.path).st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None


SinceOk = Union["Changes", Unknown, None]
"""The changes, or why the saved facts cannot be read; None: it works, it never did, or is another machine."""


def since_ok(examination: Examination, judgment: Judgment, read_only: bool = False) -> SinceOk:
    """Save the facts of this machine if it works; else return what has changed since it last did.

    `read_only`: save nothing. Nothing is saved either if checks were left out, or where it cannot be written.
    """
    if examination.node.origin.source is not Source.LIVE or not judgment.is_checked:
        return None
    name = known(host_name(examination.node), "")
    if not name:
        return None
    if judgment.verdict.is_green:
        if not read_only and not judgment.skipped:
            _save(LastOkFile(name), examination, judgment)
        return None
    before = last_ok(name)
    if before is None or isinstance(before, Unknown):
        return before
    from probes.fleet.compare import changes_between
    from probes.fleet.summary import summarize

    return changes_between(before, summarize(examination, judgment))


def last_ok(hostname: str) -> NodeSummary | Unknown | None:
    """Return the node when it last worked, or why its file cannot be read; None: there is no file."""
    file = LastOkFile(hostname)
    try:
        found = file.read()
    except OSError as error:
        return _unreadable(file, Reason.IO_ERROR, error.strerror or "unknown error")
    if found is None:
        return None
    summary = summary_in(found[0])
    if summary is None:
        return _unreadable(file, Reason.MALFORMED, "it is damaged; remove it")
    return replace(summary, taken_at=found[1])


def summary_in(content: bytes) -> NodeSummary | None:
    """Return the node that works in the content of a file; None if there is none."""
    from probes.fleet.summary import from_json

    try:
        summary = from_json(json.loads(content))
    except (ValueError, RecursionError):
        return None
    return summary if summary is not None and summary.verdict.is_green else None


def _unreadable(file: LastOkFile, reason: Reason, why: str) -> Unknown:
    return Unknown(reason, file.path, f"{printable(file.path)} cannot be read: {printable(why)}")


def _save(file: LastOkFile, examination: Examination, judgment: Judgment) -> None:
    from probes.fleet.traits import fingerprint, traits_of

    facts = fingerprint(traits_of(examination))
    if file.confirm(f'{{"facts": "{facts}"'.encode(), examination.taken_at):
        return
    from probes.fleet.summary import summarize, to_json

    summary = to_json(summarize(examination, judgment))
    with suppress(NotWritten):  # a node without a writable directory is checked all the same
        file.save(json.dumps({"facts": facts, **summary}).encode(), examination.taken_at)
