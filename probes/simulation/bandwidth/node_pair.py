"""Where tests are played: a simulated node, and its twin at the far end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from probes.host.protocol import Host
from probes.simulation.bandwidth.playback import Script, SimulatedTest
from probes.simulation.bandwidth.sockets import Sockets
from probes.simulation.bandwidth.traffic import Traffic
from probes.simulation.node.tree import Tree
from probes.simulation.node.waves import phase
from probes.snapshot.examination import Examination, examine

if TYPE_CHECKING:
    from probes.simulation.bandwidth.perftest import Side

HERE, PEER = "here", "peer"
Twin = tuple[Host, Tree, Callable[[], float]]
_LOCAL = ("127.0.0.1", "localhost", "::1")
_HOSTNAME = "/proc/sys/kernel/hostname"


class Stage:
    """One of the two nodes: its tree, its clock, its sockets and its ports' counters."""

    def __init__(
        self,
        host: Host,
        tree: Tree,
        seed: int,
        seconds: Callable[[], float],
        twin: Callable[[], Twin],
        near: Stage | None = None,
    ) -> None:
        """`seconds` since the node began, as its files are asked with; `twin` makes another such node."""
        self.name = HERE if near is None else PEER
        self.host, self.tree, self.seed = host, tree, seed
        self.clock, self._seconds = host.monotonic, seconds
        self._twin, self._far = twin, near
        self.sockets: Sockets[Side] = Sockets(self.clock) if near is None else near.sockets
        self.traffic = Traffic(tree, self.sockets.settle)
        self.sockets.show(tree, self.name)

    @property
    def far(self) -> Stage:
        """The other node of the two: grown when it is first needed."""
        if self._far is None:
            host, tree, seconds = self._twin()
            tree.add(_HOSTNAME, f"{PEER}\n")
            self._far = Stage(host, tree, self.seed + 1, seconds, self._twin, self)
        return self._far

    def named(self, server: str) -> Stage | None:
        """The node that a name or an address means; None: it is not known here."""
        if server in _LOCAL:
            return self
        here = {self.tree.description.hostname, "10.0.0.1"}
        wanted = HERE if server in here else PEER if server in (PEER, "10.0.0.2") else None
        if wanted is None:
            return None
        return self if wanted == self.name else self.far

    def seconds(self, at: float) -> float:
        """A moment of the clock as the node's files count it."""
        return self._seconds() + at - self.clock()

    def examine(self) -> Examination:
        """The node as it is now; 20 to 70 ms."""
        return examine(self.host)

    def test(self, script: Script) -> SimulatedTest:
        """A program that is played here."""
        return SimulatedTest(self.clock, script, self.sockets.settle)

    def number(self, what: str, at: float, most: int) -> int:
        """A number below `most` that belongs to a process begun at a moment."""
        return int(phase(self.seed, f"{what} {at:.4f}") / 6.2832 * most)

    def hostname(self) -> str:
        """What the node calls itself."""
        return self.tree.text(_HOSTNAME).strip()
