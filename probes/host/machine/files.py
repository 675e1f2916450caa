"""Files of this machine, or of a directory tree of a node.

Only files of the kernel are opened by their names. Users choose what other names lead to, and opening some
devices has effects, such as to start a watchdog. So these are opened as a reference (O_PATH), which opens no
device, and only a regular file is then opened through that reference.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from probes.base.origin import Origin, Source
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.machine.counter_files import CounterFiles
from probes.host.probe_thread import note
from probes.host.protocol import READ_LIMIT_BYTES, TREE_ONLY, FileRange, HostBase, refused
from probes.host.values import VERBS

# Open directories of a tree other than "/", from which no path leads out of its root.

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
            fresh = RootedTree(self._root)
            return fresh._walk(fresh._top, path)
        if stat.S_ISLNK(status.st_mode):
            return self._walk(directory, os.readlink(name, dir_fd=directory.descriptor), 1)
        return Found(self, directory, name, status)

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


READ_SECONDS = 1.0
MAX_NAMES = 65536
PAGE_BYTES = 4096

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_LIST = _READ | os.O_DIRECTORY  # the kernel refuses a device before it opens it (fs/namei.c, do_open)
# Below /proc and /sys, users choose only what these names lead to.
_CHOSEN = re.compile(r"/(?:root|cwd|fd|exe|map_files|\.\.)(?:/|$)")
_VERBS_FILE = re.compile(r"/dev/infiniband/uverbs[0-9]{1,4}")
# Read record by record, unlike other attributes in /sys.
_MANY_READS = ("/sys/kernel/debug/", "/sys/kernel/tracing/", "/sys/fs/")
_REFERENCE = os.O_PATH | os.O_CLOEXEC
_NO_OWNER = Unknown(Reason.NOT_RECORDED, "owner")
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a terminal or device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a link"),
)
_REASONS: Mapping[int, Reason] = {
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO), Reason.NOT_THERE),
    errno.ESRCH: Reason.NOT_THERE,  # the process ended while its files were read
    **dict.fromkeys((errno.EACCES, errno.EPERM), Reason.NEEDS_ROOT),
    **dict.fromkeys((errno.ELOOP, errno.EISDIR, errno.EFBIG, errno.ENAMETOOLONG), Reason.MALFORMED),
    errno.ETIMEDOUT: Reason.TIMED_OUT,
}


def unknown_from(error: OSError | ValueError, path: str, root: bool) -> Unknown:
    """Return the reason for an error; a refusal even for root is not "needs root"."""
    if isinstance(error, ValueError):  # a NUL, or another character that no file name can have
        return Unknown(Reason.MALFORMED, printable(path), "invalid file name")
    error_text = error.strerror or "unknown error"
    reason = _REASONS.get(error.errno or 0, Reason.IO_ERROR)
    if reason is Reason.NEEDS_ROOT and root:
        return Unknown(Reason.IO_ERROR, printable(path), f"{error_text}, even for root")
    detail = "" if reason in (Reason.NOT_THERE, Reason.NEEDS_ROOT) else error_text
    return Unknown(reason, printable(path), detail)


class LocalFiles(HostBase):
    """The files below `root`; no path leads out of it."""

    UNANSWERED = (Reason.NOT_THERE, TREE_ONLY)

    def __init__(self, root: str) -> None:
        root = os.path.realpath(root)
        self.origin = Origin(Source.LIVE) if root == "/" else Origin(Source.TREE, printable(root))
        self._root = "" if root == "/" else root
        self._is_root = os.geteuid() == 0
        self._tree: RootedTree | None = None
        self._counter_files = CounterFiles()

    def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
        note(path)
        try:
            return self._read(path, limit)
        except (OSError, ValueError) as error:
            return unknown_from(error, path, self._is_root)

    def read_range(self, path: str, offset: int, limit: int) -> Maybe[FileRange]:
        note(path)
        try:
            if not self._root:
                return _read_range(path, offset, limit)
            found = self._find(path)
            read = _read_range(found.name, offset, limit, found.directory.descriptor)
            # Who unpacks a dump owns its files; only root keeps their owners.
            is_ours = not self._is_root and read.owner == os.geteuid()
            return replace(read, owner=_NO_OWNER) if is_ours else read
        except (OSError, ValueError) as error:
            return unknown_from(error, path, self._is_root)

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        note(path)
        try:
            if not self._root:
                names = _names_in(path)
            else:
                found = self._find(path)
                directory = os.open(found.name, _LIST | os.O_NOFOLLOW, dir_fd=found.directory.descriptor)
                try:
                    names = _names_in(directory)
                finally:
                    os.close(directory)
        except (OSError, ValueError) as error:
            return unknown_from(error, path, self._is_root)
        if len(names) > MAX_NAMES:
            return Unknown(Reason.MALFORMED, printable(path), f"more than {MAX_NAMES} entries")
        return tuple(names)

    def link(self, path: str) -> Maybe[str]:
        note(path)
        try:
            if not self._root:
                return os.readlink(path)
            parent, name = split(path)
            tree = self._current_tree()
            return os.readlink(name or ".", dir_fd=tree.directory(parent).descriptor)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno == errno.EINVAL:
                return Unknown(Reason.MALFORMED, printable(path), "not a link")
            return unknown_from(error, path, self._is_root)

    def resolve(self, path: str) -> Maybe[str]:
        note(path)
        try:
            if not self._root:
                return os.path.realpath(path, strict=True)
            found = self._find(path)
        except (OSError, ValueError) as error:
            return unknown_from(error, path, self._is_root)
        real = found.directory.real
        return (real or "/") if found.name == "." else f"{real}/{found.name}"

    def size(self, path: str) -> Maybe[int]:
        note(path)
        try:
            return self._find(path).status.st_size if self._root else os.stat(path).st_size
        except (OSError, ValueError) as error:
            return unknown_from(error, path, self._is_root)

    def access(self, path: str, write: bool = False) -> Maybe[bool]:
        wanted = os.R_OK | (os.W_OK if write else 0)
        note(path)
        try:
            if write and not self._root and _VERBS_FILE.fullmatch(path):
                return can_open(path)
            if self._root:
                found = self._find(path)
                return os.access(found.name, wanted, dir_fd=found.directory.descriptor)
            os.stat(path)
            return os.access(path, wanted)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno == errno.EPERM:
                return refused(path)
            return unknown_from(error, path, self._is_root)

    def _read(self, path: str, limit: int) -> bytes:
        counter = None if self._root else self._counter_files.read(path, PAGE_BYTES)
        if counter is not None and len(counter) <= limit:
            return counter
        found = self._find(path) if self._root else None
        name, directory = (path, None) if found is None else (found.name, found.directory.descriptor)
        if not is_of_kernel(path):
            content = _read_range(name, 0, limit + 1, directory).content
            if len(content) > limit:
                raise OSError(errno.EFBIG, f"more than {limit} bytes")
            return content
        # A dump can have anything under any name.
        descriptor = os.open(path, _READ) if found is None else _open_regular(name, directory)
        try:
            first = os.read(descriptor, limit + 1)
            total = len(first)
            # One read of less than a page returns a whole sysfs attribute
            # (Documentation/filesystems/sysfs.rst); other files are read to their end.
            whole = total < PAGE_BYTES and path.startswith("/sys/") and not path.startswith(_MANY_READS)
            if whole and total <= limit:
                return first
            chunks = [first]
            deadline = time.monotonic() + READ_SECONDS
            while chunks[-1] and total <= limit:
                if time.monotonic() > deadline:
                    raise OSError(errno.ETIMEDOUT, "reading takes too long")
                chunks.append(os.read(descriptor, limit + 1 - total))
                total += len(chunks[-1])
            if total > limit:
                raise OSError(errno.EFBIG, f"more than {limit} bytes")
            return b"".join(chunks)
        finally:
            os.close(descriptor)

    def _find(self, path: str) -> Found:
        return self._current_tree().find(path)

    def _current_tree(self) -> RootedTree:
        tree = self._tree
        if tree is None or tree.is_expired():
            tree = self._tree = RootedTree(self._root)
        return tree


def can_open(path: str, devices: str = VERBS) -> bool:
    """Return whether the mode of a device file lets this process open it; OSError: something else refuses.

    EPERM: a device control group, or the device is in another RDMA namespace. Only opening shows that
    (security/device_cgroup.c; ib_uverbs_open in drivers/infiniband/core/uverbs_main.c, which reaches no
    hardware).
    """
    reference = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with open(f"{devices}/{os.path.basename(path)}/dev", encoding="ascii") as file:
            major, minor = map(int, file.read(64).split(":"))
        if os.fstat(reference).st_rdev != os.makedev(major, minor):
            raise OSError(errno.ENXIO, "not the device of that name")
        os.close(os.open(f"/proc/self/fd/{reference}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.EACCES:
            return False
        raise
    finally:
        os.close(reference)
    return True


def _names_in(directory: str | int) -> list[str]:
    """Return the sorted names in a directory, one more than the most at the most."""
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in islice(entries, MAX_NAMES + 1))


def is_of_kernel(path: str) -> bool:
    """Return whether a path leads to a file of the kernel, whatever users do; its size says nothing."""
    return path.startswith(("/proc/", "/sys/")) and _CHOSEN.search(path) is None


def _read_range(path: str, offset: int, limit: int, directory: int | None = None) -> FileRange:
    """Return up to `limit` bytes; a file with none of them is not opened.

    `offset`: a negative one counts from the end. `directory`: a descriptor, with a path that is a name in it
    and no link. OSError(EISDIR) with the kind of file: it is not a regular one.
    """
    reference, status = _look(path, directory)
    try:
        offset = max(0, status.st_size + offset) if offset < 0 else offset
        count = min(limit, status.st_size - offset)
        content = b""
        if count > 0:
            descriptor = _reopen(reference)
            try:
                content = os.pread(descriptor, count, offset)
            finally:
                os.close(descriptor)
    finally:
        os.close(reference)
    return FileRange(content, status.st_size, f"{status.st_dev}:{status.st_ino}", status.st_uid)


def _open_regular(path: str, directory: int | None) -> int:
    reference, _ = _look(path, directory)
    try:
        return _reopen(reference)
    finally:
        os.close(reference)


def _look(path: str, directory: int | None) -> tuple[int, os.stat_result]:
    """Return a reference to a regular file, which has not been opened by that, and its state."""
    no_link = 0 if directory is None else os.O_NOFOLLOW
    reference = os.open(path, _REFERENCE | no_link, dir_fd=directory)
    try:
        status = os.fstat(reference)
        if not stat.S_ISREG(status.st_mode):
            kind = next((word for is_kind, word in _KINDS if is_kind(status.st_mode)), "something else")
            raise OSError(errno.EISDIR, f"{kind}, not a file")
    except OSError:
        os.close(reference)
        raise
    return reference, status


def _reopen(reference: int) -> int:
    try:
        return os.open(f"/proc/self/fd/{reference}", _READ)
    except FileNotFoundError:
        raise OSError(errno.EIO, "gdrtop needs /proc to open files") from None
