"""Read files of settings; as root, none that another user could have written (as sshd's StrictModes)."""

from __future__ import annotations

import errno
import os
import stat

from tui.files.read_file import open_harmless, read_open, read_small

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NotTrusted(OSError):
    """As root, gdrtop does not read this file; `strerror` says why."""


def is_root() -> bool:
    """Return whether gdrtop runs as root."""
    return os.geteuid() == 0


def read_trusted(path: str, most_bytes: int, what: str, top: str = "/") -> bytes:
    """Return a file's bytes.

    `top`: the directories of the file are checked up to this one.

    Raises:
        NotTrusted: gdrtop runs as root, and another user could have written the file or could replace it.
        OSError: it cannot be read, is no regular file, or is larger than `what` should be.
    """
    if not is_root():
        return read_small(path, most_bytes, what)
    try:
        descriptor = open_harmless(path, follows=False)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotTrusted(0, "it is a symbolic link, and gdrtop runs as root") from None
        raise
    try:
        require_owner(os.fstat(descriptor), "it")
        require_directories(path, top)
        return read_open(descriptor, most_bytes, what)
    finally:
        os.close(descriptor)


def require_directories(path: str, top: str = "/") -> None:
    """Raise NotTrusted if another user can write to a directory of a file, up to `top`."""
    directory = os.path.dirname(os.path.realpath(path))
    while True:
        require_owner(os.stat(directory), directory)
        if directory in (top, "/"):
            break
        directory = os.path.dirname(directory)


def require_owner(status: os.stat_result, name: str) -> None:
    """Raise NotTrusted if another user owns a file or can write to it."""
    if status.st_uid not in (0, os.geteuid()):
        raise NotTrusted(0, f"{name} belongs to uid {status.st_uid}, and gdrtop runs as root")
    if status.st_mode & _OTHERS_WRITE:
        mode = f"mode {stat.S_IMODE(status.st_mode):04o}"
        raise NotTrusted(0, f"other users can write to {name} ({mode}), and gdrtop runs as root")
