"""The file with the facts of this node when it was last READY or ACTIVE, one for each host name.

A home directory may be shared by many nodes. The time of the last such check is the file's own time: most
checks find the same facts, and then write nothing.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

from tui.files.read_file import read_small
from tui.files.xdg import STATE, own_directory

ROOTS_DIRECTORY = "/var/lib/gdrtop/last-ok"
MOST_BYTES = 4 << 20
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_MOST_NAME = 100


class LastOkFileError(Exception):
    """The file cannot be written."""


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
        """Write the file whole, for its owner only.

        Raises:
            LastOkFileError: it cannot be written.
        """
        from tui.files.new_file import NewFile, make_directory, why, why_not_as_root

        if not self.path or len(content) > MOST_BYTES or why_not_as_root(self._directory):
            raise LastOkFileError(self.path)
        try:
            make_directory(self._directory, LastOkFileError)
            file = NewFile(self.path, LastOkFileError, replaces=True)
            try:
                file.write(content)
                file.keep()
            finally:
                file.drop()
            os.utime(self.path, (at, at), follow_symlinks=False)
        except OSError as error:
            raise LastOkFileError(why(error)) from None

    def read(self) -> tuple[bytes, float] | None:
        """Return the content, and the time in seconds since 1970; None: there is no file.

        Raises:
            OSError: it cannot be read.
        """
        if not self.path:
            return None
        try:
            content = read_small(self.path, MOST_BYTES, "the facts of a node")
            return content, os.stat(self.path).st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None
