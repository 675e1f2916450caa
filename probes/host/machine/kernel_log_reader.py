"""Follow the kernel log without waiting for it (Documentation/ABI/testing/dev-kmsg)."""

from __future__ import annotations

import contextlib
import errno
import os
import re

from probes.base.text import printable
from probes.host.protocol import MAX_MESSAGES, MESSAGE_CHARACTERS, KernelMessage

KERNEL_LOG = "/dev/kmsg"
_RECORD_BYTES = 8192  # CONSOLE_EXT_LOG_MAX, the longest record
_MAX_READS = 4096  # of one call
_RECORD = re.compile(
    rb"([0-9]{1,6}),([0-9]{1,20}),([0-9]{1,19}),[^;\n]{0,200};([^\n]{0,8192})(?:\n.*)?", re.S
)
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")


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


def parse_record(record: bytes) -> KernelMessage | None:
    """Return the message of a record of /dev/kmsg; None if it is malformed."""
    match = _RECORD.fullmatch(record)
    if match is None:
        return None
    priority = int(match[1]) % 8  # the rest is the facility
    text = _ESCAPED.sub(lambda escaped: bytes((int(escaped[1], 16),)), match[4])
    shown = printable(text.decode("utf-8", "replace").strip(), MESSAGE_CHARACTERS)
    return KernelMessage(int(match[2]), int(match[3]) / 1e6, priority, shown)
