"""GPUs that sleep: NVML and libcuda would wake them up, and the next second again.

The kernel suspends an idle GPU only where its power/control is "auto" (NVIDIA driver README, PCI-Express
Runtime D3 Power Management).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Protocol

from probes.base.unknown import Maybe, Reason, Unknown, known

DRIVER = "/sys/bus/pci/drivers/nvidia"
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_LISTED_SECONDS = 10.0


class Directories(Protocol):
    """What reads files and lists directories."""

    def read(self, path: str, limit: int = ...) -> Maybe[str]:
        """Return a file's text."""

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        """Return the sorted names in a directory."""


class SleepingGpus:
    """Finds a sleeping GPU; which of them may sleep at all is looked up every ten seconds."""

    def __init__(self, files: Directories, clock: Callable[[], float] = time.monotonic) -> None:
        self._files, self._clock = files, clock
        self._may_sleep: tuple[str, ...] = ()
        self._listed_at: float | None = None

    def why_not_asked(self, library: str) -> Unknown | None:
        """Return why a library is not asked; None: no GPU sleeps."""
        now = self._clock()
        if self._listed_at is None or now - self._listed_at >= _LISTED_SECONDS:
            self._listed_at = now
            bdfs = filter(_BDF.fullmatch, known(self._files.names(DRIVER), ()))
            self._may_sleep = tuple(bdf for bdf in bdfs if self._power(bdf, "control") == "auto")
        for bdf in self._may_sleep:
            if self._power(bdf, "runtime_status") in ("suspended", "suspending"):
                detail = f"not asked, because {bdf} sleeps and {library} would wake it up"
                return Unknown(Reason.NOT_THERE, f"{DRIVER}/{bdf}/power/runtime_status", detail)
        return None

    def _power(self, bdf: str, name: str) -> str:
        return known(self._files.read(f"{DRIVER}/{bdf}/power/{name}", 4096), "")
