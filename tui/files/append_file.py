"""Files of gdrtop to which only their owner appends lines: the audit log and bandwidth results."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from probes.base.text import printable
from tui.files.new_file import why, why_not_as_root
from tui.files.xdg import NO_HOME

FULL_BYTES = 8 << 20  # then it is renamed to .1, and a new one is created
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class AppendFile:
    """The file at a path. One that other users could have written is neither read nor appended to.

    `name` is its name in a sentence, "the log"; `error` makes the exception if a line cannot be appended.
    Only the newest `read_bytes` are read. With `all_may_read`, still only the owner may write. A file of
    more than `full_bytes` (by default FULL_BYTES) is renamed.
    """

    def __init__(
        self,
        path: str,
        name: str,
        error: Callable[[str], Exception],
        read_bytes: int,
        owner: int | None = None,
        all_may_read: bool = False,
        full_bytes: int | None = None,
    ) -> None:
        self.path = path
        self._full_bytes = full_bytes
        self._name, self._error, self._read_bytes = name, error, read_bytes
        self._owner = os.geteuid() if owner is None else owner
        self._modes = (0o755, 0o644) if all_may_read else (0o700, 0o600)

    def append(self, line: str) -> None:
        """Append a line and sync it to disk."""
        try:
            self._append(line)
        except (OSError, ValueError) as error:
            message = f"{self._name} {printable(self.path)} cannot be written: {why(error)}"
            raise self._error(message) from None

    def lines(self) -> list[str]:
        """Return the newest lines, oldest first; none if there is no file that can be trusted."""
        try:
            return self._tail(self.path)
        except (OSError, ValueError):
            return []

    def earlier_lines(self) -> list[str]:
        """Return the lines of the previous file, which was full."""
        try:
            return self._tail(f"{self.path}.1")
        except (OSError, ValueError):
            return []

    def why_unread(self) -> str:
        """Return why an existing file cannot be read, as a sentence, or ""."""
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
        directory = os.path.dirname(self.path)
        if not os.path.isdir(directory):
            os.makedirs(directory, for_directory, exist_ok=True)
            self._set_mode(directory, for_directory)
        is_new = not os.path.exists(self.path)
        descriptor = os.open(self.path, _APPEND, for_file)
        try:
            size = self._own_file(descriptor)
            if is_new:
                os.fchmod(descriptor, for_file)
            if size > (self._full_bytes or FULL_BYTES):
                os.replace(self.path, f"{self.path}.1")
                os.close(descriptor)
                descriptor = os.open(self.path, _APPEND, for_file)
                size = self._own_file(descriptor)
            content = line.encode("utf-8", "replace") + b"\n"
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                content = b"\n" + content  # a full disk has cut off the last line
            # One write: a torn line never damages another.
            if os.write(descriptor, content) != len(content):
                raise OSError(0, "the disk is full")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _set_mode(self, directory: str, mode: int) -> None:
        """Give a new directory its mode, whatever the umask of root's session is."""
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(descriptor, mode)
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
        """Return the file's size; OSError if it is not a regular file that only its owner may write."""
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "not a regular file")
        if status.st_uid != self._owner:
            raise OSError(0, f"it belongs to uid {status.st_uid}, not to uid {self._owner}")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            mode = stat.S_IMODE(status.st_mode)
            raise OSError(0, f"other users can write to it (mode {mode:04o}); check it, then run chmod go-w")
        return status.st_size


def objects_of(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file that has one a line; lines that are not gdrtop's are left out."""
    for text in lines:
        with suppress(ValueError, RecursionError):
            line = json.loads(text)
            if isinstance(line, dict):
                yield line
