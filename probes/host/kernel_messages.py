"""Messages of the kernel log as they come, from /dev/kmsg (Documentation/ABI/testing/dev-kmsg)."""

from __future__ import annotations

import re

from probes.base.frozen import frozen
from probes.base.text import printable

MAX_MESSAGES = 512  # of one answer; the rest comes with the next one
MAX_TEXT = 512  # characters


@frozen
class KernelMessage:
    """One message."""

    sequence: int
    at: float  # seconds since the kernel started
    priority: int  # 0 (emergency) to 7 (debug)
    text: str


_RECORD = re.compile(
    rb"([0-9]{1,6}),([0-9]{1,20}),([0-9]{1,19}),[^;\n]{0,200};([^\n]{0,8192})(?:\n.*)?", re.S
)
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")


def parse_record(record: bytes) -> KernelMessage | None:
    """Return the message of a record of /dev/kmsg; None if it is malformed."""
    match = _RECORD.fullmatch(record)
    if match is None:
        return None
    priority = int(match[1]) % 8  # the rest is the facility
    text = _ESCAPED.sub(lambda escaped: bytes((int(escaped[1], 16),)), match[4])
    shown = printable(text.decode("utf-8", "replace").strip(), MAX_TEXT)
    return KernelMessage(int(match[2]), int(match[3]) / 1e6, priority, shown)
