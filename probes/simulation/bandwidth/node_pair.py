"""The two nodes that tests run on: a simulated node, and a second one of the same kind as its peer."""

from __future__ import annotations

from collections.abc import Callable

from probes.host.protocol import Host
from probes.simulation.bandwidth.playback import Script, SimulatedTest
from probes.simulation.bandwidth.sockets import Sockets
from probes.simulation.bandwidth.traffic import Traffic
from probes.simulation.node.model.tree import Tree
from probes.simulation.node.model.waves import phase
from probes.snapshot.examination import Examination, examine

HERE, PEER = "here", "peer"
PEER_NAMES = (PEER, "node2")  # node2: in the examples of `gdrtop bench --help`
NodeParts = tuple[Host, Tree, Callable[[], float]]
_LOCAL = ("127.0.0.1", "localhost", "::1")
_HOSTNAME = "/proc/sys/kernel/hostname"


class SimulatedNode:
    """One of the two nodes: its tree, its clock, its sockets and its ports' counters."""

    def __init__(
        self,
        parts: NodeParts,
        seed: int,
        make_peer: Callable[[], NodeParts],
        near: SimulatedNode | None = None,
    ) -> None:
        """`parts`: host, tree, and the seconds since the node started, which its files are read with."""
        self.host, self.tree, self._seconds = parts
        self.name = HERE if near is None else PEER
        self.seed, self.clock = seed, self.host.monotonic
        self._make_peer, self._far = make_peer, near
        self.sockets: Sockets = near.sockets if near else Sockets(self.clock)
        self.traffic = Traffic(self.tree, self.sockets.advance)
        self.sockets.show(self.tree, self.name)

    @property
    def far(self) -> SimulatedNode:
        """The other node, built when it is first needed."""
        if self._far is None:
            parts = self._make_peer()
            parts[1].add(_HOSTNAME, f"{PEER}\n")
            self._far = SimulatedNode(parts, self.seed + 1, self._make_peer, self)
        return self._far

    def named(self, server: str) -> SimulatedNode | None:
        """Return the node of a name or address; None if the name is unknown."""
        here = (self.tree.description.hostname, "10.0.0.1")
        name = HERE if server in here else PEER if server in (*PEER_NAMES, "10.0.0.2") else None
        if server in _LOCAL or name == self.name:
            return self
        return None if name is None else self.far

    def seconds(self, at: float) -> float:
        """Return a moment of the clock as the node's files count it."""
        return self._seconds() + at - self.clock()

    def examine(self) -> Examination:
        """Probe the node as it is now; 20 to 70 ms."""
        return examine(self.host)

    def run(self, script: Script) -> SimulatedTest:
        """Run a program on this node."""
        return SimulatedTest(self.clock, script, self.sockets.advance)

    def number(self, what: str, at: float, most: int) -> int:
        """Return a number below `most` that belongs to a process started at a moment."""
        return int(phase(self.seed, f"{what} {at:.4f}") / 6.2832 * most)

    def hostname(self) -> str:
        """Return the node's host name."""
        return self.tree.text(_HOSTNAME).strip()
