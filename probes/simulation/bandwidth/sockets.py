"""TCP between simulated programs: which server listens where, and which client is about to connect."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass

from probes.simulation.bandwidth.playback import NEVER
from probes.simulation.node.devices.network import listening
from probes.simulation.node.model.tree import Content, Tree

TABLE = "/proc/net/tcp"


@dataclass
class Listener:
    """A server that waits on a port of a node for its one client."""

    node: str
    port: int
    since: float
    accept: Callable[[object, float], None]  # called with the client and the moment
    until: float = NEVER


class Sockets:
    """The listeners of both nodes, and the connections that are due later."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._listeners: list[Listener] = []
        self._due: list[tuple[float, Callable[[float], None]]] = []
        self._lock = threading.RLock()

    def listen(self, node: str, port: int, since: float, accept: Callable[[object, float], None]) -> Listener:
        """Add a server that waits from a moment on."""
        now = self._clock()
        listener = Listener(node, port, since, accept)
        self._listeners = [*(each for each in self._listeners if each.until > now), listener]
        return listener

    def connect_at(self, at: float, connect: Callable[[float], None]) -> None:
        """Let a client look for its server at a moment."""
        with self._lock:
            self._due.append((at, connect))

    def advance(self) -> None:
        """Make the connections that are due, in their order."""
        with self._lock:
            now = self._clock()
            due = sorted((each for each in self._due if each[0] <= now), key=lambda each: each[0])
            self._due = [each for each in self._due if each[0] > now]
            for at, connect in due:
                connect(at)

    def listeners(self, node: str, at: float) -> list[Listener]:
        """Return the servers that wait on a node at a moment."""
        return [each for each in self._listeners if each.node == node and each.since <= at < each.until]

    def show(self, tree: Tree, node: str) -> None:
        """Add the node's listeners to its /proc/net/tcp, after those that are there."""
        before = tree.files.get(TABLE, "")

        def table(seconds: float) -> str:
            self.advance()
            ports = (each.port for each in self.listeners(node, self._clock()))
            return f"{_text(before, seconds)}{''.join(map(listening, ports))}"

        tree.add(TABLE, table)


def is_taken(tree: Tree, port: int, seconds: float) -> bool:
    """Return whether a socket of the node listens on a port, as its /proc/net/tcp shows."""
    table = _text(tree.files.get(TABLE, ""), seconds)
    return re.search(rf"^ *\d+: [0-9A-F]{{8}}:{port:04X} 00000000:0000 0A ", table, re.M) is not None


def _text(content: Content, seconds: float) -> str:
    text = content(seconds) if callable(content) else content
    return text if isinstance(text, str) else text.decode()
