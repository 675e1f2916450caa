"""The names of a process's threads. Libraries name theirs, so NCCL shows without reading its environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from probes.base.text import printable
from probes.base.unknown import Maybe, Unknown

MAX_THREADS = 1024  # of a process; a rank with data loaders has a few hundred
_MAX_NAMES = 256
_MAX_BYTES = 64  # the kernel gives 15 characters and a newline


class ProcessFiles(Protocol):
    """The part of a host that reads /proc."""

    def read_bytes(self, path: str, limit: int = ...) -> Maybe[bytes]:
        """Return a file's content."""

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        """Return the names in a directory."""


def thread_names_from_files(host: ProcessFiles, pids: Sequence[int]) -> Mapping[int, Maybe[tuple[str, ...]]]:
    """Return the distinct names of each process's threads, sorted, from /proc/PID/task/TID/comm."""
    return {pid: _names(host, f"/proc/{pid}/task") for pid in pids}


def _names(host: ProcessFiles, path: str) -> Maybe[tuple[str, ...]]:
    threads = host.names(path)
    if isinstance(threads, Unknown):
        return threads
    found: set[bytes] = set()
    failed: Unknown | None = None
    for thread in [name for name in threads if name.isdecimal()][:MAX_THREADS]:
        name = host.read_bytes(f"{path}/{thread}/comm", _MAX_BYTES)
        if isinstance(name, Unknown):  # the thread has ended meanwhile
            failed = name
        else:
            found.add(name.strip())
    if failed is not None and not found:
        return failed
    return tuple(sorted({printable(name.decode("utf-8", "replace")) for name in found})[:_MAX_NAMES])
