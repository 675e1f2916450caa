"""Read parts of regular files. Nothing else is ever opened: opening a device or a pipe can have an effect.

The path is opened with O_PATH, which opens only a reference to the file (open(2)); what it refers to is
checked, and that reference is opened again for reading. Between the two, the path may become anything.
"""

from __future__ import annotations

import errno
import os
import stat

from probes.host.file_range import FileRange

_REFERENCE = os.O_PATH | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a terminal or device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a link"),
)


def read_range(path: str, offset: int, limit: int, directory: int | None = None) -> FileRange:
    """Return up to `limit` bytes; with 0 the file is not opened.

    `directory`: a descriptor, with a path that is a name in it and no link. OSError(EISDIR) with the kind of
    file: it is not a regular one.
    """
    no_link = 0 if directory is None else os.O_NOFOLLOW
    reference = os.open(path, _REFERENCE | no_link, dir_fd=directory)
    try:
        status = os.fstat(reference)
        if not stat.S_ISREG(status.st_mode):
            kind = next((word for is_kind, word in _KINDS if is_kind(status.st_mode)), "something else")
            raise OSError(errno.EISDIR, f"{kind}, not a file")
        content = _content(reference, offset, min(limit, status.st_size - offset))
    finally:
        os.close(reference)
    return FileRange(content, status.st_size, f"{status.st_dev}:{status.st_ino}")


def _content(reference: int, offset: int, count: int) -> bytes:
    if count <= 0:
        return b""
    descriptor = os.open(f"/proc/self/fd/{reference}", _READ)
    try:
        return os.pread(descriptor, count, offset)
    finally:
        os.close(descriptor)
