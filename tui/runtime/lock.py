"""Locks: one gdrtop at a time runs an action or a bandwidth test on a node, and one is connected to RAS.

Each is a locked file (flock(2)), which the kernel unlocks when its owner and the steps that it started have
ended. Root's is below /run and readable only by root, so that no other user can take it. A user's is in the
user's runtime directory and respects root's too. A container has its own /run: a gdrtop in a container and
one on its host do not exclude each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import re
import stat
import time

from probes.base.text import printable
from probes.host.trusted_path import is_root
from tui.files.xdg import STATE, own_directory

ROOTS_DIRECTORY = "/run/gdrtop"
_FILE, _RAS_FILE = "actions.lock", "ras.lock"
_RAS_BYTES = 1 << 16
_RAS_SECONDS = 3600.0  # then it does not matter any more when a port was asked
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCKS_BYTES = 4 << 20


class LockTaken(Exception):
    """Another gdrtop has the lock, or it cannot be created; the message says which."""


class ActionLock:
    """The lock as a context manager; LockTaken if another gdrtop has it."""

    def __init__(self, directory: str | None = None) -> None:
        self._directory = runtime_directory() if directory is None else directory
        self.descriptor = -1  # for a child: it keeps the lock as long as it runs, even if gdrtop is killed

    def __enter__(self) -> ActionLock:
        descriptor = -1
        try:
            descriptor = _open_file(self._directory, _FILE)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            holder = "" if is_root() else _roots_holder()
        except BlockingIOError:
            holder = _holder(descriptor)
        except (OSError, ValueError) as error:
            _close(descriptor)
            raise LockTaken(_not_taken(self._directory, _FILE, error)) from None
        if holder:
            _close(descriptor)
            raise LockTaken(f"another gdrtop is running an action or a test on this node ({holder})")
        with contextlib.suppress(OSError):  # a full file system; the lock is taken anyway
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {user_name()}".encode(), 0)
        self.descriptor = descriptor
        return self

    def __exit__(self, *_: object) -> None:
        _close(self.descriptor)
        self.descriptor = -1


class RasLock:
    """A lock: only one gdrtop of a user at a time is connected to RAS.

    Its file says when each port was asked last.
    Times are seconds of the monotonic clock, which all processes of a node share.
    """

    def __init__(self, directory: str | None = None) -> None:
        self._directory = runtime_directory() if directory is None else directory
        self._descriptor = -1

    def take(self) -> str:
        """Take the lock, unless this object has it; return why it cannot be taken, or ""."""
        if self._descriptor >= 0:
            return ""
        descriptor = -1
        try:
            descriptor = _open_file(self._directory, _RAS_FILE)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _close(descriptor)
            return "another gdrtop is connected to RAS; gdrtop opens one connection at a time"
        except (OSError, ValueError) as error:
            _close(descriptor)
            return _not_taken(self._directory, _RAS_FILE, error)
        self._descriptor = descriptor
        return ""

    def release(self) -> None:
        """Let another gdrtop take it."""
        _close(self._descriptor)
        self._descriptor = -1

    def asked_at(self) -> dict[str, float]:
        """Return when each port was asked last, by any gdrtop of this user."""
        descriptor = -1
        try:
            descriptor = _open_file(self._directory, _RAS_FILE)
            times = json.loads(os.pread(descriptor, _RAS_BYTES, 0) or b"{}")
        except (OSError, ValueError, RecursionError):  # a file cut by a full file system
            return {}
        finally:
            _close(descriptor)
        if not isinstance(times, dict):
            return {}
        return {port: at for port, at in times.items() if isinstance(at, float)}

    def note(self, port: str, at: float) -> None:
        """Write down that a port is asked; only the holder of the lock may."""
        times = {other: then for other, then in self.asked_at().items() if at - _RAS_SECONDS < then <= at}
        content = json.dumps({**times, port: at}).encode()
        with contextlib.suppress(OSError):  # a full file system
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, content, 0)


def _open_file(directory: str, name: str) -> int:
    """Open a lock's file; OSError if it is not a regular file owned by this user."""
    parent = open_own_directory(directory)
    try:
        descriptor = os.open(name, _FILE_FLAGS, 0o600, dir_fd=parent)
    finally:
        os.close(parent)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise OSError(0, "it is not a regular file owned by this user")
    return descriptor


def _not_taken(directory: str, name: str, error: Exception) -> str:
    reason = getattr(error, "strerror", "") or str(error)
    return f"cannot acquire the lock {printable(directory)}/{name}: {reason}"


def runtime_directory() -> str:
    """Return the directory of this user's lock and detached runs: below /run, or in XDG_RUNTIME_DIR."""
    if is_root():
        return ROOTS_DIRECTORY
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    try:
        is_own = os.path.isabs(base) and os.stat(base).st_uid == os.geteuid()
    except (OSError, ValueError):
        is_own = False
    return os.path.join(base, "gdrtop") if is_own else own_directory(STATE)


def open_own_directory(path: str) -> int:
    """Create and open a directory that only this user may write; OSError if it is not, or a link."""
    os.makedirs(path, 0o755 if is_root() else 0o700, exist_ok=True)
    descriptor = os.open(path, _DIRECTORY_FLAGS)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(descriptor)
        raise OSError(0, "other users can write to its directory")
    return descriptor


def user_name() -> str:
    """Return the user name, with the one before sudo: "root (sudo by alice)"."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    before = printable(os.environ.get("SUDO_USER", ""), 64)
    return f"{name} (sudo by {before})" if before and os.getuid() == 0 else name


def user_and_day(seconds: float) -> str:
    """Return the user name and the local date of a time since the epoch: "root on 2026-11-22"."""
    return f"{user_name()} on {time.strftime('%Y-%m-%d', time.localtime(seconds))}"


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        if descriptor >= 0:
            os.close(descriptor)


def _holder(descriptor: int) -> str:
    """Return who has the lock, by the content of the file."""
    pid, _, user = os.pread(descriptor, 256, 0).decode("utf-8", "replace").partition(" ")
    if not re.fullmatch(r"[1-9][0-9]{0,9}", pid):
        return "just started"
    ended = "" if os.path.exists(f"/proc/{pid}") else "; it has exited, but its last step is still running"
    return f"pid {pid}, user {printable(user, 128)}{ended}"


def _roots_holder() -> str:
    """Return who has root's lock, by /proc/locks, because only root may open the file."""
    try:
        status = os.stat(f"{ROOTS_DIRECTORY}/{_FILE}")
        locks = os.open("/proc/locks", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    content = b""
    try:
        while len(content) < _LOCKS_BYTES and (piece := os.read(locks, _LOCKS_BYTES)):  # a page at most
            content += piece
    finally:
        os.close(locks)
    text = content.decode("ascii", "replace")
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    match = re.search(rf"FLOCK +ADVISORY +WRITE +(\d+) {device} ", text)
    return f"pid {match[1]}, user root" if match else ""
