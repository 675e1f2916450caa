"""Open directories of a tree other than "/", from which no path leads out of its root."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from typing import NamedTuple

CACHE_SECONDS = 0.5
MAX_LINKS = 40  # the kernel's limit, path_resolution(7)
MAX_DIRECTORIES = 512

_OPEN_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class OpenDirectory(NamedTuple):
    """An open directory of a tree, and its path below the root without links."""

    descriptor: int
    real: str


class Found(NamedTuple):
    """The target of a path, which is not a link: a name in an open directory of `tree`."""

    tree: RootedTree
    directory: OpenDirectory
    name: str  # "." for the directory itself
    status: os.stat_result


class RootedTree:
    """Open directories of a tree that were recently used.

    Every step looks up one name in an open directory, so no path leads out of the root even while directories
    are moved. The directories are closed after the last question that uses them, in any thread.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._descriptors = [os.open(root, _OPEN_PATH)]
        self._top = OpenDirectory(self._descriptors[0], "")
        # By the path asked for, and by the path without links, which has all parents too.
        self._asked = {"": self._top}
        self._real = {"": self._top}
        self._until = time.monotonic() + CACHE_SECONDS

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        for descriptor in getattr(self, "_descriptors", ()):
            close(descriptor)

    def is_expired(self) -> bool:
        """Return whether the directories are too old or too many."""
        return time.monotonic() > self._until or len(self._descriptors) > MAX_DIRECTORIES // 2

    def find(self, path: str) -> Found:
        """Return the target of a path, starting at an open directory if there is one."""
        parent, name = split(path)
        if name in ("", ".", ".."):
            return self._walk(self._top, path)
        directory = self._asked.get(parent) or self.directory(parent)
        try:
            status = os.stat(name, dir_fd=directory.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            if self._is_still(parent, directory):
                raise
            return RootedTree(self._root).find_from_root(path)
        if stat.S_ISLNK(status.st_mode):
            return self._walk(directory, os.readlink(name, dir_fd=directory.descriptor), 1)
        return Found(self, directory, name, status)

    def find_from_root(self, path: str) -> Found:
        """Return the target of a path, starting at the root."""
        return self._walk(self._top, path)

    def directory(self, path: str) -> OpenDirectory:
        """Return the directory of a path."""
        known = self._asked.get(path) or self._real.get(path)
        if known is None:
            found = self._walk(self._top, path)
            if found.name != ".":
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            known = found.directory
        self._asked[path] = known
        return known

    def _is_still(self, path: str, directory: OpenDirectory) -> bool:
        """Return whether the path is still this directory: a device may be gone, or back elsewhere."""
        if path != directory.real:  # through a link, whose target may have changed
            return False
        try:
            now = os.stat(self._root + path, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(now, os.stat(directory.descriptor))

    def _walk(self, here: OpenDirectory, path: str, links: int = 0) -> Found:
        """Follow a path from a directory, with links; `..` stops at the root, as in a chroot."""
        if path.startswith("/"):
            here = self._top
        left = path.split("/")[::-1]
        while left:
            name = left.pop()
            if name in ("", "."):
                continue
            if name == "..":
                here = self._real[here.real.rpartition("/")[0]]
                continue
            entered = self._real.get(f"{here.real}/{name}")
            if entered is not None:
                here = entered
                continue
            status = os.stat(name, dir_fd=here.descriptor, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                here = self._enter(here, name)
            elif stat.S_ISLNK(status.st_mode):
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                target = os.readlink(name, dir_fd=here.descriptor)
                if target.startswith("/"):
                    here = self._top
                left.extend(target.split("/")[::-1])
            elif left:
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            else:
                return Found(self, here, name, status)
        return Found(self, here, ".", os.stat(here.descriptor))

    def _enter(self, here: OpenDirectory, name: str) -> OpenDirectory:
        if len(self._descriptors) > MAX_DIRECTORIES:
            raise OSError(errno.ELOOP, "too many directories in the path")
        descriptor = os.open(name, _OPEN_PATH, dir_fd=here.descriptor)
        self._descriptors.append(descriptor)
        entered = OpenDirectory(descriptor, f"{here.real}/{name}")
        self._real[entered.real] = entered
        return entered


def split(path: str) -> tuple[str, str]:
    """Return the directory and the last name of a path."""
    parent, _, name = path.rstrip("/").rpartition("/")
    return parent, name
