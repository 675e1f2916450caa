"""The directory of `gdrtop watch`: ring segments and saved recordings; other files in it are left alone.

    ring-00000042-1763819000.tar.gz      a segment, with its number and the time at which it begins
    event-20261122-140211-port-state.tar.gz      a saved recording, with the time (UTC) of its event

Both are recordings. Only one gdrtop at a time uses a directory; the kernel unlocks it when that one ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from typing import NamedTuple

from probes.base.text import printable
from tui.files import NotWritten
from tui.files.new_file import why, why_not_as_root
from tui.files.xdg import NO_HOME
from tui.runtime.lock import open_own_directory

_SEGMENT = re.compile(r"ring-([0-9]{8})-([0-9]{1,12})\.tar\.gz")
_SAVED = re.compile(r"event-[0-9]{8}-[0-9]{6}-[a-z-]{1,40}(?:-[0-9]{1,3})?\.tar\.gz")
_UNFINISHED = re.compile(rf"\.{_SAVED.pattern}\.[0-9]{{1,10}}\.part")
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_LAST_NUMBER = 99_999_999
# Kept free for others: a twentieth of the file system, within these limits, but at most half of it.
_LEAST_FREE_BYTES = 500 << 20
_MOST_FREE_BYTES = 10 << 30


class RingError(NotWritten):
    """The directory cannot be used; the message says why."""


class OwnFile(NamedTuple):
    """A segment or a saved recording."""

    name: str
    number: int  # of a segment
    began_at: float  # of a segment, in seconds since 1970
    size_bytes: int


class RingDirectory:
    """The locked directory; RingError if it cannot be used, or if another gdrtop uses it."""

    def __init__(self, path: str) -> None:
        if not os.path.isabs(path):
            raise RingError(NO_HOME if not path else f"{printable(path)} is not an absolute path")
        self._asked = path
        self._descriptor = self._opened()
        for name in self._own(_UNFINISHED):  # left by a killed gdrtop
            self.remove(name)

    def _opened(self) -> int:
        path = os.path.realpath(self._asked)  # a link to one's own directory is followed
        others = why_not_as_root(self._asked)
        if others:
            raise RingError(others)
        shown = printable(path)
        try:
            descriptor = open_own_directory(path)
        except (OSError, ValueError) as error:
            raise RingError(f"{shown} cannot be used: {why(error)}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise RingError(f"another gdrtop watch uses {shown}; choose another --dir") from None
            raise RingError(f"{shown} cannot be locked: {why(error)}") from None
        self.path = path
        return descriptor

    @property
    def is_in_place(self) -> bool:
        """Return whether the path still leads to this directory, which may have been removed or replaced."""
        try:
            there = os.stat(self._asked)
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self._descriptor))

    def open_again(self) -> None:
        """Use the directory that is at the path now, and create it if it is missing; or raise RingError."""
        descriptor = self._opened()
        os.close(self._descriptor)
        self._descriptor = descriptor

    def close(self) -> None:
        """Unlock the directory."""
        os.close(self._descriptor)

    def segments(self) -> list[OwnFile]:
        """Return the segments, oldest first."""
        found = []
        for name, size in self._own(_SEGMENT).items():
            matched = _SEGMENT.fullmatch(name)
            assert matched is not None
            found.append(OwnFile(name, int(matched[1]), float(matched[2]), size))
        return sorted(found, key=lambda segment: segment.number)

    def saved(self) -> list[OwnFile]:
        """Return the saved recordings, oldest first."""
        return [OwnFile(name, 0, 0.0, size) for name, size in sorted(self._own(_SAVED).items())]

    def _own(self, pattern: re.Pattern[str]) -> dict[str, int]:
        """Return names and sizes of this user's regular files whose names match."""
        found = {}
        for name in os.listdir(self._descriptor):
            if not pattern.fullmatch(name):
                continue
            with contextlib.suppress(OSError):  # it is gone
                status = os.lstat(name, dir_fd=self._descriptor)
                if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1:
                    found[name] = status.st_size
        return found

    def remove(self, name: str) -> None:
        """Delete a file that `segments` or `saved` has named."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def path_of(self, name: str) -> str:
        """Return the path of a file in the directory."""
        return os.path.join(self.path, name)

    def begin_segment(self, at: float) -> SegmentFile:
        """Create the segment after the newest one; OSError if that fails."""
        numbers = [segment.number for segment in self.segments()]
        for number in range(max(numbers, default=0) + 1, _LAST_NUMBER):
            name = f"ring-{number:08}-{max(0, int(at))}.tar.gz"
            with contextlib.suppress(FileExistsError):  # a link or a foreign file
                return SegmentFile(name, os.open(name, _CREATE, 0o600, dir_fd=self._descriptor))
        raise OSError(0, "the directory has no free segment number")

    def new_name(self, at: float, what: str) -> str:
        """Return an unused name for a saved recording; `what`: lower-case letters and "-"."""
        begins = f"event-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(at))}-{what}"
        for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
            name = f"{begins}{suffix}.tar.gz"
            if not os.path.lexists(self.path_of(name)):
                return name
        raise OSError(0, f"the directory already has 1,000 files named {begins}")

    def free_bytes(self) -> int:
        """Return how much may be written so that others keep enough space; OSError if unknown."""
        system = os.fstatvfs(self._descriptor)
        total = system.f_blocks * system.f_frsize
        kept = min(max(total // 20, _LEAST_FREE_BYTES), _MOST_FREE_BYTES, total // 2)
        return system.f_bavail * system.f_frsize - kept


class SegmentFile:
    """A segment that is being written; what is in it can be read at any time."""

    def __init__(self, name: str, descriptor: int) -> None:
        self.name = name
        self._descriptor = descriptor
        self.size_bytes = 0

    def write(self, content: bytes) -> None:
        """Append a piece whole, or leave the file as it was and raise OSError."""
        left = memoryview(content)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except BaseException:
            os.ftruncate(self._descriptor, self.size_bytes)
            os.lseek(self._descriptor, self.size_bytes, os.SEEK_SET)
            raise
        self.size_bytes += len(content)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
