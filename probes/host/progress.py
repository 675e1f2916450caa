"""The question that a thread is asking its host: distinguishes a slow probe from a stuck one.

A node whose CPUs are busy with a job answers late, but it answers. A read of a device that has fallen off the
bus never returns. Only the second may time out, so limits count from the newest question.
"""

from __future__ import annotations

import threading
import time


class Progress:
    """The newest question of one thread."""

    def __init__(self) -> None:
        self.question = ""
        self.asked_at = time.monotonic()
        self.allowed_seconds = 0.0  # the time limit of a command

    def quiet_seconds(self) -> float:
        """Return the seconds for which the newest question has been open beyond its own limit."""
        return time.monotonic() - self.asked_at - self.allowed_seconds


_OF_THREAD = threading.local()
_NEWEST = Progress()  # of all followed threads


def follow(progress: Progress) -> None:
    """Note the questions of this thread in `progress` from now on."""
    _OF_THREAD.progress = progress


def note(question: str, allowed_seconds: float = 0.0) -> None:
    """Note that this thread asks its host a question now; does nothing in other threads."""
    progress: Progress | None = getattr(_OF_THREAD, "progress", None)
    if progress is None:
        return
    now = time.monotonic()
    for noted in (progress, _NEWEST):
        noted.question, noted.allowed_seconds, noted.asked_at = question, allowed_seconds, now


def quiet_seconds() -> float:
    """Return the seconds since any followed thread asked its newest question."""
    return _NEWEST.quiet_seconds()
