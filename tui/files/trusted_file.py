"""Read files of settings; as root, none that another user could have written (as sshd's StrictModes)."""

from __future__ import annotations

import errno
import os

from probes.host import trusted_path
from probes.host.trusted_path import NotTrusted, require_owner, require_path
from tui.files.read_file import open_harmless, read_open, read_small


def read_trusted(path: str, most_bytes: int, what: str, top: str = "/") -> bytes:
    """Return a file's bytes.

    `top`: the directories of the file are checked up to this one.

    Raises:
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
