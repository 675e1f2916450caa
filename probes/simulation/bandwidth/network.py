"""Several simulated nodes on one network: tests run between any two of them."""

from __future__ import annotations

from collections.abc import Callable

from probes.host.values import HOSTNAME
from probes.simulation.bandwidth.node_pair import NodeParts, SimulatedNode, Sockets
from probes.snapshot.examination import Examination


class SimulatedNetwork:
    """The nodes by name, with one clock and common sockets."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.nodes: dict[str, SimulatedNode] = {}
        self._sockets = Sockets(clock)
        self._examinations: dict[str, Examination] = {}

    def connect(self, name: str, parts: NodeParts, seed: int) -> SimulatedNode:
        """Add a node, which gets this host name."""
        node = _NetworkNode(self, name, parts, seed, self._sockets)
        self.nodes[name] = node
        return node

    def examination(self, node: SimulatedNode) -> Examination:
        """Probe a node once for all nodes with the same description and faults."""
        label = node.host.origin.label
        if label not in self._examinations:
            self._examinations[label] = SimulatedNode.examine(node)
        return self._examinations[label]


class _NetworkNode(SimulatedNode):
    """A node of a network."""

    def __init__(
        self, network: SimulatedNetwork, name: str, parts: NodeParts, seed: int, sockets: Sockets
    ) -> None:
        self._network = network
        parts[1].add(HOSTNAME, f"{name}\n")
        super().__init__(parts, seed, lambda: parts, name=name, sockets=sockets)

    def named(self, server: str) -> SimulatedNode | None:
        return self._network.nodes.get(server)

    def examine(self) -> Examination:
        return self._network.examination(self)
