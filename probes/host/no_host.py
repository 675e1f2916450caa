"""The host of what is judged without a node."""

from __future__ import annotations

import time

from probes.base.origin import Origin, Source
from probes.base.unknown import Reason
from probes.host.protocol import HostBase


class NoHost(HostBase):
    """A node of which nothing is known."""

    UNANSWERED = (Reason.NOT_RECORDED, "no node was read")
    origin = Origin(Source.TREE, "no node")

    def is_root(self) -> bool:
        """Return False: nothing is read."""
        return False

    def monotonic(self) -> float:
        """Return the clock of this machine."""
        return time.monotonic()

    def wall_clock(self) -> float:
        """Return the clock of this machine."""
        return time.time()
