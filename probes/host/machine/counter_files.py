"""Counters of devices in sysfs: files that stay open, at one system call a read.

A file that is open delays neither the removal of its device nor the unloading of its driver: it then reads
ENODEV (fs/kernfs/file.c). Names move from one device to another (`rdma dev set`, udev), so a file is used
only while the device's name leads to the directory in which it was opened. No other directory gets the inode
number of one that is open (fs/kernfs/dir.c, __kernfs_new_node; inode.c, kernfs_evict_inode).
"""

from __future__ import annotations

import os
import re
import resource
import threading
import time
from collections.abc import Callable

_COUNTER = re.compile(
    r"(/sys/class/infiniband/[^/]+)/((?:ports/[0-9]+/)?(?:(?:hw_)?counters/[^/]+|state|rate))"
    r"|(/sys/class/cxi/[^/]+)/(device/telemetry/[^/]+)"
    r"|(/sys/bus/pci/devices/[^/]+)/(power/runtime_status|power_state|current_link_speed|current_link_width)"
)
_SAME_SECONDS = 0.02  # the name is followed once for the counters that are read together
_UNUSED_SECONDS = 60.0  # then the files of a device are closed
_MOST_FILES = 512
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class _Device:
    """The directory of a device and its open files, which are closed after their last use in any thread."""

    def __init__(self, directory: str) -> None:
        self.files: dict[str, int] = {}  # by the path below the directory
        self.descriptor = os.open(directory, _OPEN_DIRECTORY)
        self.status = os.fstat(self.descriptor)
        self.seen_at = 0.0

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        for descriptor in (getattr(self, "descriptor", None), *self.files.values()):
            if descriptor is not None:
                close(descriptor)


class CounterFiles:
    """Open counters; a thread takes a file out to read it, so a read that hangs holds up no other."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._devices: dict[str, _Device] = {}
        self._lock = threading.Lock()
        self._swept_at = clock()
        # The rest of what the process may open is for everything else.
        self._most = min(_MOST_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._room = self._most  # at least so many more, until files are counted again

    def read(self, path: str, limit: int) -> bytes | None:
        """Return a counter's first bytes, or raise OSError; None: no such counter, or too many open files."""
        found = _COUNTER.fullmatch(path)
        if found is None:
            return None
        directory, name = (part for part in found.groups() if part is not None)
        device = self._device(directory)
        descriptor = device.files.pop(name, None)
        if descriptor is None:
            if not self._take_room():
                return None
            descriptor = os.open(name, _OPEN, dir_fd=device.descriptor)
        try:
            content = os.pread(descriptor, limit, 0)
        except OSError:
            os.close(descriptor)
            raise
        if device.files.setdefault(name, descriptor) != descriptor:  # another thread has opened it too
            os.close(descriptor)
        return content

    def _take_room(self) -> bool:
        """Return whether one more file may stay open; most times without counting those that are open."""
        if self._room <= 0:
            self._room = self._most - sum(len(device.files) for device in list(self._devices.values()))
        self._room -= 1
        return self._room >= 0

    def _device(self, directory: str) -> _Device:
        """Return the device that has the name now; its files stay open if it had the name before."""
        now = self._clock()
        device = self._devices.get(directory)
        if device is not None and now - device.seen_at < _SAME_SECONDS:
            return device
        try:
            if device is None or not os.path.samestat(os.stat(directory), device.status):
                device = _Device(directory)
        except OSError:
            device = None
            raise
        finally:
            self._note(directory, device, now)
        return device

    def _note(self, directory: str, device: _Device | None, now: float) -> None:
        """Take over who has a name now, and drop devices that were not read for a while."""
        if device is not None:
            device.seen_at = now
        with self._lock:
            if device is None:
                self._devices.pop(directory, None)
            else:
                self._devices[directory] = device
            if now - self._swept_at > _UNUSED_SECONDS:
                self._swept_at = now
                for name, other in list(self._devices.items()):
                    if now - other.seen_at > _UNUSED_SECONDS:
                        del self._devices[name]
