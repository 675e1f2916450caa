"""Messages of the kernel log as they come, from /dev/kmsg (Documentation/ABI/testing/dev-kmsg)."""

from __future__ import annotations

from dataclasses import dataclass

MAX_MESSAGES = 512  # of one answer; the rest comes with the next one
MAX_TEXT = 512  # characters


@dataclass(frozen=True)
class KernelMessage:
    """One message."""

    sequence: int
    at: float  # seconds since the kernel started
    priority: int  # 0 (emergency) to 7 (debug)
    text: str
