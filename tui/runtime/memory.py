"""Keep a long-running process small."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress

# mallopt(3), malloc.h of glibc.
_M_TRIM_THRESHOLD = -1
_M_ARENA_MAX = -8
_TRIM_BYTES = 128 << 10
# Objects more than freed before the youngest are searched for cycles; Python's default is 700.
_NEW_OBJECTS = 10_000
_COLLECTIONS = 20  # of the younger generation, before the next one is searched


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


def leave_out_openssl() -> None:
    """Import asyncio and hashlib without OpenSSL, which would take 5 MB and is not used.

    Both work where Python was built without it. A distribution may have changed that: there they import it
    later, as usual. Call this before anything else imports them; what imports ssl by itself later gets it.
    """
    missing = [name for name in ("ssl", "_hashlib") if name not in sys.modules]
    for name in missing:
        sys.modules[name] = None  # type: ignore[assignment]  # "import" raises ImportError then
    try:
        with suppress(ImportError):
            import asyncio  # noqa: F401
            import hashlib  # noqa: F401
    finally:
        for name in missing:
            del sys.modules[name]


def collect_garbage_rarely() -> None:
    """Enable the search for garbage cycles: rarely, and never among the objects that exist now.

    A dashboard has 100,000 objects that live to its end; one search among them takes as long as five seconds
    of readings. Reference counts free nearly everything else. Call it before the app runs.
    """
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, _COLLECTIONS, _COLLECTIONS)
    gc.enable()


def end_with_parent() -> None:
    """Let the kernel kill this process when the thread that forked it ends (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
