"""The directories of a tree that is not "/", held open so that nothing in it leads out of its root."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from typing import NamedTuple

CACHE_SECONDS = 0.5
MAX_LINKS = 40  # the kernel's own limit, path_resolution(7)
MAX_DIRECTORIES = 512

_LOOK_INTO = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class OpenDirectory(NamedTuple):
    """A directory of a tree, held open, and its path below the root without any link."""

    descriptor: int
    real: str


class Found(NamedTuple):
    """What a path leads to, which is no link: a name in a directory held open by `tree`."""

    tree: RootedTree
    directory: OpenDirectory
    name: str  # "." for the directory itself
    status: os.stat_result


class RootedTree:
    """The directories of a tree that were asked for just now, held open.

    Every step is one name looked up in an open directory, so nothing leads out of the root even while
    somebody moves the tree's directories about. They are closed when the last question that uses them has
    its answer, in whichever thread.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._descriptors = [os.open(root, _LOOK_INTO)]
        self._top = OpenDirectory(self._descriptors[0], "")
        # By the path asked for, and by the path without links, whose parents are all in it too.
        self._asked = {"": self._top}
        self._real = {"": self._top}
        self._until = time.monotonic() + CACHE_SECONDS

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        for descriptor in getattr(self, "_descriptors", ()):
            close(descriptor)

    def is_used_up(self) -> bool:
        """Whether what it holds is too old, or too much."""
        return time.monotonic() > self._until or len(self._descriptors) > MAX_DIRECTORIES // 2

    def find(self, path: str) -> Found:
        """What the path leads to, looked up from a directory that is held open where there is one."""
        parent, name = split(path)
        if name in ("", ".", ".."):
            return self._walk(self._top, path)
        directory = self._asked.get(parent) or self.directory(parent)
        try:
            status = os.stat(name, dir_fd=directory.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            if self._is_still(parent, directory):
                raise
            return RootedTree(self._root).find_anew(path)
        if stat.S_ISLNK(status.st_mode):
            return self._walk(directory, os.readlink(name, dir_fd=directory.descriptor), 1)
        return Found(self, directory, name, status)

    def find_anew(self, path: str) -> Found:
        """What the path leads to, step by step from the root."""
        return self._walk(self._top, path)

    def directory(self, path: str) -> OpenDirectory:
        """The directory the path leads to."""
        known = self._asked.get(path) or self._real.get(path)
        if known is None:
            found = self._walk(self._top, path)
            if found.name != ".":
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            known = found.directory
        self._asked[path] = known
        return known

    def _is_still(self, path: str, directory: OpenDirectory) -> bool:
        """Whether the path still names this directory: a device may be gone, or back elsewhere."""
        if path != directory.real:  # by a link, which may lead elsewhere by now
            return False
        try:
            now = os.stat(self._root + path, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(now, os.stat(directory.descriptor))

    def _walk(self, here: OpenDirectory, path: str, links: int = 0) -> Found:
        """Step by step from a directory, links included; `..` stops at the root, as in a chroot."""
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
            raise OSError(errno.ELOOP, "too many directories on the way")
        descriptor = os.open(name, _LOOK_INTO, dir_fd=here.descriptor)
        self._descriptors.append(descriptor)
        entered = OpenDirectory(descriptor, f"{here.real}/{name}")
        self._real[entered.real] = entered
        return entered


def split(path: str) -> tuple[str, str]:
    """The path's directory and its last name."""
    parent, _, name = path.rstrip("/").rpartition("/")
    return parent, name
