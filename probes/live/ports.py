"""Rates and error counters of the NIC ports between two samples."""

from __future__ import annotations

from probes.facts.node import Node
from probes.host.protocol import Host
from probes.live.sample import PortSample
from probes.snapshot.rates import Reading


class PortReader:
    """Read the ports' counters; slow ones are read less often."""

    def read(self, host: Host, node: Node, reading: Reading) -> tuple[PortSample, ...]:
        """Return a sample of each port, in the order of the node."""
        return ()
