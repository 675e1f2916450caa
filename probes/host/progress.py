"""Which question a thread asks its host at this moment: tells a slow probe from one that is stuck.

A node whose CPUs are saturated by a job answers late, but it answers. A read of a device that has fallen off
the bus never does. Only the second may be given up, so limits count from the newest question, not from the
beginning.
"""

from __future__ import annotations

import threading
import time


class Progress:
    """The newest question of one thread."""

    def __init__(self) -> None:
        self.question = ""
        self.asked_at = time.monotonic()
        self.allowed_seconds = 0.0  # a command has a time limit of its own

    def quiet_seconds(self) -> float:
        """Return the seconds for which the newest question has been open beyond its own limit."""
        return time.monotonic() - self.asked_at - self.allowed_seconds


_OF_THREAD = threading.local()
_NEWEST = Progress()  # of all threads that are followed


def follow(progress: Progress) -> None:
    """Note the questions of this thread in `progress` from now on."""
    _OF_THREAD.progress = progress


def note(question: str, allowed_seconds: float = 0.0) -> None:
    """Note that this thread asks its host a question now; without effect in a thread nobody follows."""
    progress: Progress | None = getattr(_OF_THREAD, "progress", None)
    if progress is None:
        return
    now = time.monotonic()
    for noted in (progress, _NEWEST):
        noted.question, noted.allowed_seconds, noted.asked_at = question, allowed_seconds, now


def quiet_seconds() -> float:
    """Return the seconds since any thread that is followed asked its newest question."""
    return _NEWEST.quiet_seconds()
