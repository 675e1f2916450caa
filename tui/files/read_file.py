"""Read small files of users and sites, which may be anything."""

from __future__ import annotations

import os
import stat

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


def read_small(path: str, most_bytes: int, what: str) -> bytes:
    """Return a file's bytes; raise OSError if it is no regular file, or larger than what it should be."""
    descriptor = os.open(path, _READ)
    try:
        return read_open(descriptor, most_bytes, what)
    finally:
        os.close(descriptor)


def read_open(descriptor: int, most_bytes: int, what: str) -> bytes:
    """Return the bytes of an open file; raise OSError as `read_small` does."""
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise OSError(0, f"it is a directory, not {what}")
    if not stat.S_ISREG(status.st_mode):
        raise OSError(0, "it is not a regular file")
    if status.st_size > most_bytes:
        raise OSError(0, f"it is larger than {most_bytes >> 10} KiB, too large for {what}")
    return os.pread(descriptor, most_bytes, 0)
