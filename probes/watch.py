"""A node over time: probed once, read again and again, and probed anew when it has changed."""

from __future__ import annotations

from collections.abc import Hashable

from probes.changes import fingerprint
from probes.host import Host
from probes.node import Node, probe_node
from probes.rates import Reading, read


class Watch:
    """The node as it was probed last; asks its host only when told to."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._node: Node | None = None
        self._before: Hashable = None

    def probe(self, anyway: bool = False) -> Node | None:
        """The node where it is new, has changed or is asked for anyway; None where it is as before."""
        now = fingerprint(self.host)
        if self._node is not None and not anyway and now == self._before:
            return None
        self._before = now
        self._node = probe_node(self.host)
        return self._node

    def read(self) -> Reading:
        """One reading of the devices that the node had when it was probed."""
        assert self._node is not None, "probe first"
        return read(self.host, self._node)
