"""The one door to a node: files, links, directories, read-only commands, NVML, verbs.

Every other probe asks a `Host` and opens nothing itself, so that a dumped tree, a simulated node or a
recording answers the same questions as this machine does.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from probes.command import CommandOutput, run_command
from probes.nvml import NvmlFacts, NvmlLibrary, NvmlLive
from probes.origin import Origin, Source
from probes.text import printable, printable_lines
from probes.unknown import Maybe, Reason, Unknown
from probes.verbs import probe_dmabuf

READ_LIMIT_BYTES = 64 * 1024
READ_SECONDS = 1.0
CACHE_SECONDS = 0.5
MAX_NAMES = 65536
MAX_LINKS = 40  # the kernel's own limit, path_resolution(7)
PAGE_BYTES = 4096


class Host(Protocol):
    """A node that can be asked; nothing here changes it."""

    origin: Origin

    def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
        """A file's bytes; a file longer than `limit` is malformed, not cut."""

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[str]:
        """A file's text, surrounding white space removed, control characters replaced."""

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        """The sorted names in a directory, as they are: clean them before they are shown."""

    def link(self, path: str) -> Maybe[str]:
        """The target a symbolic link names, unresolved."""

    def resolve(self, path: str) -> Maybe[str]:
        """The path with every link resolved, inside the host's root."""

    def size(self, path: str) -> Maybe[int]:
        """A file's size in bytes; for PCI `resourceN` files, the size of the BAR."""

    def access(self, path: str, write: bool = False) -> Maybe[bool]:
        """Whether this process may read (and write) the file."""

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        """The output of a read-only command found on the trusted path."""

    def nvml(self) -> Maybe[NvmlFacts]:
        """What NVML says of driver and GPUs; the reason tells a missing driver from a broken one."""

    def nvml_live(self) -> Maybe[tuple[NvmlLive, ...]]:
        """NVML's moving figures, one reading."""

    def dmabuf_errno(self, device: str) -> Maybe[int]:
        """The errno of the `ibv_reg_dmabuf_mr` probe on one RDMA device (domain: EBADF = supported)."""

    def environment(self, name: str) -> Maybe[str]:
        """An environment variable of the node's session."""

    def is_root(self) -> bool:
        """Whether this process may read what only root may."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back; rates are taken over it."""

    def wall_clock(self) -> float:
        """Seconds since 1970."""


_REASONS: Mapping[int, Reason] = {
    errno.ENOENT: Reason.NOT_THERE,
    errno.ENOTDIR: Reason.NOT_THERE,
    errno.ENODEV: Reason.NOT_THERE,
    errno.ENXIO: Reason.NOT_THERE,
    errno.EACCES: Reason.NEEDS_ROOT,
    errno.EPERM: Reason.NEEDS_ROOT,
    errno.ELOOP: Reason.MALFORMED,
    errno.EISDIR: Reason.MALFORMED,
    errno.ENAMETOOLONG: Reason.MALFORMED,
    errno.ETIMEDOUT: Reason.TIMED_OUT,
}


def unknown_from(error: OSError, path: str, root: bool) -> Unknown:
    """The typed reason behind an OSError; a refusal that even root gets is not "needs root"."""
    reason = _REASONS.get(error.errno or 0, Reason.IO_ERROR)
    if reason is Reason.NEEDS_ROOT and root:
        return Unknown(Reason.IO_ERROR, path, f"{os.strerror(error.errno or 0)}, even for root")
    detail = "" if reason in (Reason.NOT_THERE, Reason.NEEDS_ROOT) else os.strerror(error.errno or 0)
    return Unknown(reason, path, detail)


class LocalHost:
    """This machine, or a tree below `root` that looks like one (a dump, a container's /host mount)."""

    def __init__(self, root: str = "/") -> None:
        root = os.path.realpath(root)
        self.origin = Origin(Source.LIVE) if root == "/" else Origin(Source.TREE, printable(root))
        self._root = "" if root == "/" else root
        self._is_root = os.geteuid() == 0
        # Where the directories asked just now really are. Entries are proved inside the root when made;
        # one that has gone stale (a device removed) is looked up anew when its file is not found.
        self._directories: dict[str, str] = {"": self._root}
        self._cached_until = 0.0
        self._library = NvmlLibrary()

    # Files

    def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
        """A file's bytes; a file longer than `limit` is malformed, not cut."""
        try:
            return self._read(path, limit)
        except OSError as error:
            return unknown_from(error, path, self._is_root)
        except ValueError:
            return Unknown(Reason.MALFORMED, printable(path), "a NUL in the path")

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[str]:
        """A file's text, surrounding white space removed, control characters replaced."""
        content = self.read_bytes(path, limit)
        if isinstance(content, Unknown):
            return content
        return printable_lines(content.decode("utf-8", errors="replace").strip())

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        """The sorted names in a directory."""
        try:
            names = os.listdir(self._real(path) if self._root else path)
        except OSError as error:
            return unknown_from(error, path, self._is_root)
        if len(names) > MAX_NAMES:
            return Unknown(Reason.MALFORMED, path, f"more than {MAX_NAMES} entries")
        return tuple(sorted(names))

    def link(self, path: str) -> Maybe[str]:
        """The target a symbolic link names, unresolved."""
        try:
            if self._root:
                parent, _, name = path.rstrip("/").rpartition("/")
                return os.readlink(f"{self._real(parent)}/{name}")
            return os.readlink(path)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return Unknown(Reason.MALFORMED, path, "not a link")
            return unknown_from(error, path, self._is_root)

    def resolve(self, path: str) -> Maybe[str]:
        """The path with every link resolved, inside the host's root."""
        try:
            if self._root:
                return self._real(path)[len(self._root) :] or "/"
            return os.path.realpath(path, strict=True)
        except OSError as error:
            return unknown_from(error, path, self._is_root)

    def size(self, path: str) -> Maybe[int]:
        """A file's size in bytes."""
        try:
            return os.stat(self._real(path) if self._root else path).st_size
        except OSError as error:
            return unknown_from(error, path, self._is_root)

    def access(self, path: str, write: bool = False) -> Maybe[bool]:
        """Whether this process may read (and write) the file."""
        try:
            real = self._real(path) if self._root else path
            os.stat(real)
        except OSError as error:
            return unknown_from(error, path, self._is_root)
        return os.access(real, os.R_OK | (os.W_OK if write else 0))

    def _read(self, path: str, limit: int) -> bytes:
        in_sysfs = path.startswith("/sys/")
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        if self._root:
            # A dump may hold anything under any name: look before opening, and open no link.
            path, mode = self._look(path)
            if not stat.S_ISREG(mode):
                raise OSError(errno.EISDIR, "not a regular file")
            flags |= os.O_NOFOLLOW
        descriptor = os.open(path, flags)
        try:
            first = os.read(descriptor, limit + 1)
            # A sysfs attribute comes whole in one read of less than a page
            # (Documentation/filesystems/sysfs.rst); other files are read to their end.
            if in_sysfs and len(first) < PAGE_BYTES:
                return first
            chunks = [first]
            total = len(first)
            deadline = time.monotonic() + READ_SECONDS
            while chunks[-1] and total <= limit:
                if time.monotonic() > deadline:
                    raise OSError(errno.ETIMEDOUT, "read takes too long")
                chunks.append(os.read(descriptor, limit + 1 - total))
                total += len(chunks[-1])
            if total > limit:
                raise OSError(errno.EFBIG, f"more than {limit} bytes")
            return b"".join(chunks)
        finally:
            os.close(descriptor)

    def _real(self, path: str) -> str:
        """The path outside of what `path` is below the root; links never lead out of it."""
        return self._look(path)[0]

    def _look(self, path: str) -> tuple[str, int]:
        """The path outside, and the mode of what is there, which is no link."""
        parent, _, name = path.rstrip("/").rpartition("/")
        now = time.monotonic()
        if now > self._cached_until:
            self._directories = {"": self._root}
            self._cached_until = now + CACHE_SECONDS
        if name not in ("", ".", ".."):
            try:
                real = f"{self._directory(parent)}/{name}"
                mode = os.lstat(real).st_mode
                if not stat.S_ISLNK(mode):
                    return real, mode
            except FileNotFoundError:
                pass  # not there, or a directory above is another by now
        real = self._walk(path)
        return real, os.lstat(real).st_mode

    def _directory(self, path: str) -> str:
        """A directory's path outside, from the nearest directory above that was asked just now."""
        cached = self._directories.get(path)
        if cached is not None:
            return cached
        parent, _, name = path.rpartition("/")
        if name in ("", ".", ".."):
            return self._walk(path)
        real = f"{self._directory(parent)}/{name}"
        if stat.S_ISLNK(os.lstat(real).st_mode):
            real = self._walk(path)
        self._directories[path] = real
        return real

    def _walk(self, path: str) -> str:
        done: list[str] = []
        left = path.split("/")[::-1]
        links = 0
        while left:
            name = left.pop()
            if name in ("", "."):
                continue
            if name == "..":
                del done[-1:]
                continue
            here = "/".join((self._root, *done, name))
            if stat.S_ISLNK(os.lstat(here).st_mode):
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                target = os.readlink(here)
                if target.startswith("/"):
                    done.clear()
                left.extend(target.split("/")[::-1])
            else:
                done.append(name)
        return "/".join((self._root, *done))

    # Commands and libraries: only of this machine, never for a tree

    def _tree_has_none(self, what: str) -> Unknown:
        return Unknown(Reason.NOT_THERE, what, "a tree of files has no commands, drivers or devices")

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        """The output of a read-only command found on the trusted path."""
        return self._tree_has_none(argv[0]) if self._root else run_command(argv, seconds)

    def nvml(self) -> Maybe[NvmlFacts]:
        """What NVML says of driver and GPUs."""
        return self._tree_has_none("NVML") if self._root else self._library.facts()

    def nvml_live(self) -> Maybe[tuple[NvmlLive, ...]]:
        """NVML's moving figures, one reading."""
        return self._tree_has_none("NVML") if self._root else self._library.live()

    def dmabuf_errno(self, device: str) -> Maybe[int]:
        """The errno of the `ibv_reg_dmabuf_mr` probe on one RDMA device."""
        return self._tree_has_none("libibverbs") if self._root else probe_dmabuf(device)

    def environment(self, name: str) -> Maybe[str]:
        """An environment variable of this process; a tree has none."""
        if self._root:
            return self._tree_has_none(name)
        text = os.environ.get(name)
        return Unknown(Reason.NOT_THERE, name) if text is None else printable(text)

    # Who asks, and when

    def is_root(self) -> bool:
        """Whether this process may read what only root may."""
        return self._is_root

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()

    def wall_clock(self) -> float:
        """Seconds since 1970."""
        return time.time()
