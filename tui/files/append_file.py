"""A file of gdrtop's own that is appended to, line by line, by its owner alone.

Like the recording's, such a file is gdrtop's and not the node's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from probes.base.text import printable
from tui.files.new_file import why, why_not_as_root
from tui.files.xdg import NO_HOME

FULL_BYTES = 8 << 20  # then it is kept once as .1, and a new one is begun
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class LinesFile:
    """The file at a path; what somebody else could have written is neither added to nor believed.

    `name` is what it is called in a sentence, "the log"; `error` makes the exception that is raised with a
    sentence where a line cannot be added. Only the newest `read_bytes` are read. Where all may read it, only
    its owner may write it all the same.
    """

    def __init__(
        self,
        path: str,
        name: str,
        error: Callable[[str], Exception],
        read_bytes: int,
        owner: int | None = None,
        all_may_read: bool = False,
    ) -> None:
        self.path = path
        self._name, self._error, self._read_bytes = name, error, read_bytes
        self._owner = os.geteuid() if owner is None else owner
        self._modes = (0o755, 0o644) if all_may_read else (0o700, 0o600)

    def append(self, line: str) -> None:
        """Adds one line, on the disk when this returns."""
        try:
            self._append(line)
        except (OSError, ValueError) as error:
            told = f"{self._name} {printable(self.path)} cannot be written: {why(error)}"
            raise self._error(told) from None

    def lines(self) -> list[str]:
        """The newest lines, the oldest first; none where there is no file that can be believed."""
        try:
            return self._tail(self.path)
        except (OSError, ValueError):
            return []

    def earlier_lines(self) -> list[str]:
        """The lines of the file that was full before this one was begun."""
        try:
            return self._tail(f"{self.path}.1")
        except (OSError, ValueError):
            return []

    def why_unread(self) -> str:
        """Why a file that is there is not read, a sentence; "" where it is read, or is not there."""
        try:
            self._tail(self.path)
        except FileNotFoundError:
            return ""
        except (OSError, ValueError) as error:
            return f"{self._name} {printable(self.path)} cannot be read: {why(error)}"
        return ""

    def _append(self, line: str) -> None:
        for_directory, for_file = self._modes
        if not os.path.isabs(self.path):
            raise OSError(0, NO_HOME)
        others = why_not_as_root(os.path.dirname(self.path))
        if others:
            raise OSError(0, others)
        os.makedirs(os.path.dirname(self.path), for_directory, exist_ok=True)
        descriptor = os.open(self.path, _APPEND, for_file)
        try:
            size = self._own_file(descriptor)
            if size > FULL_BYTES:
                os.replace(self.path, f"{self.path}.1")
                os.close(descriptor)
                descriptor = os.open(self.path, _APPEND, for_file)
                size = self._own_file(descriptor)
            content = line.encode("utf-8", "replace") + b"\n"
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                content = b"\n" + content  # what a full disk has cut off is not this line's beginning
            # One write: a line is whole, or is torn and alone in its own.
            if os.write(descriptor, content) != len(content):
                raise OSError(0, "the disk is full")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _tail(self, path: str) -> list[str]:
        if not os.path.isabs(path):
            raise FileNotFoundError
        descriptor = os.open(path, _READ)
        try:
            size = self._own_file(descriptor)
            start = max(0, size - self._read_bytes)
            content = os.pread(descriptor, self._read_bytes, start)
        finally:
            os.close(descriptor)
        lines = content.decode("utf-8", "replace").split("\n")
        return lines[1:] if start else lines

    def _own_file(self, descriptor: int) -> int:
        """The file's size; OSError where it is not a regular file that only its owner may write."""
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is no regular file")
        if status.st_uid != self._owner:
            raise OSError(0, f"it belongs to uid {status.st_uid} and not to uid {self._owner}")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            mode = stat.S_IMODE(status.st_mode)
            raise OSError(0, f"others may write it too (mode {mode:04o}): look at it, then chmod go-w")
        return status.st_size
