"""A node over time: probed once, read again and again, and probed anew when it has changed."""

from __future__ import annotations

import time
from collections.abc import Hashable

from probes.facts.node import Node, probe_node
from probes.host.protocol import Host
from probes.snapshot.changes import fingerprint, lacks_answers
from probes.snapshot.rates import Reading, read

# A probe that was too slow once, on a busy node, need not be the next time.
RETRY_SECONDS = 10.0


class Watch:
    """The node as it was probed last; asks its host only when told to."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._node: Node | None = None
        self._before: Hashable = None
        self._probed_at = 0.0

    def probe(self, anyway: bool = False) -> Node | None:
        """The node where it is new, has changed, lacks an answer or is asked for anyway; else None."""
        now = fingerprint(self.host)
        if self._node is not None and not anyway and now == self._before and not self._asks_again(self._node):
            return None
        self._before = now
        self._probed_at = time.monotonic()
        self._node = probe_node(self.host)
        return self._node

    def read(self) -> Reading:
        """One reading of the devices that the node had when it was probed."""
        assert self._node is not None, "probe first"
        return read(self.host, self._node, with_interfaces=True)

    def _asks_again(self, node: Node) -> bool:
        return time.monotonic() - self._probed_at >= RETRY_SECONDS and lacks_answers(node)
