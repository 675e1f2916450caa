"""Read small files of users and sites, which may be anything."""

from __future__ import annotations

import errno
import os
import stat

from probes.host import trusted_path
from probes.host.trusted_path import NotTrusted, require_owner, require_path

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY
_HARMLESS = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)


def open_harmless(path: str, follows: bool = True, or_pipe: bool = False) -> int:
    """Open a file or directory for reading; raise OSError before anything else is opened.

    Another user may have put a link to a device there, and opening some devices has effects. A reference
    (O_PATH) opens none, and what it refers to stays the same. `follows`: links. `or_pipe`: a pipe as well,
    which waits for a writer.
    """
    reference = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if follows else os.O_NOFOLLOW))
    try:
        mode = os.fstat(reference).st_mode
        is_pipe = or_pipe and stat.S_ISFIFO(mode)
        if not is_pipe and not any(is_kind(mode) for is_kind in _HARMLESS):
            raise OSError(0, "neither a file nor a pipe" if or_pipe else "it is not a regular file")
        if stat.S_ISLNK(mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return os.open(f"/proc/self/fd/{reference}", _READ | (0 if is_pipe else os.O_NONBLOCK))
    finally:
        os.close(reference)


def read_small(path: str, most_bytes: int, what: str) -> bytes:
    """Return a file's bytes; raise OSError if it is no regular file, or larger than what it should be."""
    descriptor = open_harmless(path)
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


def read_trusted(path: str, most_bytes: int, what: str, top: str = "/") -> bytes:
    """Return a file's bytes.

    `top`: the directories of the file are checked up to this one.
    NotTrusted: gdrtop runs as root, and another user could have written the file or could replace it.
    OSError: it cannot be read, is no regular file, or is larger than `what` should be.
    """
    if not trusted_path.is_root():
        return read_small(path, most_bytes, what)
    try:
        descriptor = open_harmless(path, follows=False)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotTrusted(0, "it is a symbolic link, and gdrtop runs as root") from None
        raise
    try:
        require_owner(os.fstat(descriptor), "it")
        require_path(os.path.dirname(path), top)
        return read_open(descriptor, most_bytes, what)
    finally:
        os.close(descriptor)
