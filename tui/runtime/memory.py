"""Keep a long-running process small."""

from __future__ import annotations

import ctypes

# mallopt(3), malloc.h of glibc.
_M_TRIM_THRESHOLD = -1
_M_ARENA_MAX = -8
_TRIM_BYTES = 128 << 10


def limit_malloc() -> None:
    """Let glibc return freed memory, and use one arena for all threads; elsewhere do nothing.

    By default each thread gets an arena that keeps what it has freed, and the threshold for returning memory
    rises: probes in threads then make the process grow by tens of kilobytes a minute. Threads of Python
    take turns anyway. Call it before the first thread starts.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
