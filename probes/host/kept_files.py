"""Counters in sysfs, which are read every few seconds and kept open: one system call instead of three.

A file that is open delays neither the removal of its device nor the unloading of its module: it then reads
ENODEV (fs/kernfs/file.c).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable

_KEPT = re.compile(
    r"/sys/class/infiniband/[^/]+/(?:ports/[0-9]+/(?:(?:hw_)?counters/[^/]+|state|rate)|hw_counters/[^/]+)"
    r"|/sys/module/[^/]+/(?:refcnt|initstate)"
    r"|/sys/bus/pci/devices/[^/]+/(?:power/runtime_status|power_state|current_link_speed|current_link_width)"
)
_MOST_FILES = 512  # half of the usual limit of open files
_LONGEST_SECONDS = 30.0  # then it is opened again: a renamed device keeps its files
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def is_kept(path: str) -> bool:
    """Return whether a file is one of those that are kept open."""
    return _KEPT.fullmatch(path) is not None


class KeptFiles:
    """Open files by path; a thread takes a file out to read it, so a read that hangs holds up no other."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._files: dict[str, tuple[int, float]] = {}  # descriptor, and when it was opened

    def read(self, path: str, limit: int) -> bytes:
        """Return the first bytes of a file, at most `limit`; OSError if it cannot be read."""
        kept = self._files.pop(path, None)
        if kept is not None and self._clock() - kept[1] < _LONGEST_SECONDS:
            try:
                return self._content(path, kept, limit)
            except OSError:  # the device has gone, and another may have come
                kept = None
        if kept is not None:
            os.close(kept[0])
        return self._content(path, (os.open(path, _OPEN), self._clock()), limit)

    def _content(self, path: str, file: tuple[int, float], limit: int) -> bytes:
        is_put_back = False
        try:
            content = os.pread(file[0], limit, 0)
            is_put_back = len(self._files) < _MOST_FILES and self._files.setdefault(path, file) is file
        finally:
            if not is_put_back:
                os.close(file[0])
        return content
