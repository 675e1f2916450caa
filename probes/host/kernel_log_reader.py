"""Follow the kernel log without waiting for it (Documentation/ABI/testing/dev-kmsg)."""

from __future__ import annotations

import contextlib
import errno
import os

from probes.host.kernel_messages import MAX_MESSAGES, KernelMessage, parse_record

KERNEL_LOG = "/dev/kmsg"
_RECORD_BYTES = 8192  # CONSOLE_EXT_LOG_MAX, the longest record
_MAX_READS = 4096  # of one call


class KernelLogReader:
    """An open kernel log; each message is returned once."""

    def __init__(self, path: str = KERNEL_LOG) -> None:
        self._path = path
        self._descriptor: int | None = None

    def read(self) -> tuple[KernelMessage, ...]:
        """Return the new messages, at most MAX_MESSAGES; the first call returns none. OSError if refused."""
        if self._descriptor is None:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
            self._descriptor = descriptor
            os.lseek(descriptor, 0, os.SEEK_END)
            return ()
        messages: list[KernelMessage] = []
        for _ in range(_MAX_READS):
            try:
                record = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:  # messages were overwritten before they were read
                    continue
                self.close()
                raise
            message = parse_record(record)
            if message is not None:
                messages.append(message)
            if not record or len(messages) >= MAX_MESSAGES:
                break
        return tuple(messages)

    def close(self) -> None:
        """Close the log; the next call starts at its end."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.close()
