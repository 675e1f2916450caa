"""TCP between simulated programs: who listens where, and who wants to connect."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from probes.simulation.bandwidth.playback import NEVER
from probes.simulation.node.network import listening
from probes.simulation.node.tree import Content, Tree

TABLE = "/proc/net/tcp"
T = TypeVar("T")


@dataclass
class Listener(Generic[T]):
    """A server that waits on a port of a node for its one client."""

    node: str
    port: int
    since: float
    server: T
    until: float = NEVER

    def waits(self, at: float) -> bool:
        """Whether it listens at a moment."""
        return self.since <= at < self.until


class Sockets(Generic[T]):
    """The listeners of a node and of its twin, and the connections that are yet to be made."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._listeners: list[Listener[T]] = []
        self._coming: list[tuple[float, Callable[[float], None]]] = []
        self._lock = threading.RLock()

    def listen(self, node: str, port: int, since: float, server: T) -> Listener[T]:
        """From a moment on a server waits there."""
        now = self._clock()
        self._listeners = [one for one in self._listeners if one.until > now]
        listener = Listener(node, port, since, server)
        self._listeners.append(listener)
        return listener

    def connect_at(self, at: float, connect: Callable[[float], None]) -> None:
        """At a moment a client will look for its server."""
        with self._lock:
            self._coming.append((at, connect))

    def settle(self) -> None:
        """Makes the connections that are due by now, in their order."""
        with self._lock:
            now = self._clock()
            due = sorted((one for one in self._coming if one[0] <= now), key=lambda one: one[0])
            self._coming = [one for one in self._coming if one[0] > now]
            for at, connect in due:
                connect(at)

    def listener(self, node: str, port: int, at: float) -> Listener[T] | None:
        """Who listens there at a moment."""
        return next(
            (one for one in self._listeners if (one.node, one.port) == (node, port) and one.waits(at)), None
        )

    def show(self, tree: Tree, node: str) -> None:
        """From now on the node's /proc/net/tcp shows its listeners after those that were there."""
        before = tree.files.get(TABLE, "")

        def table(seconds: float) -> str:
            self.settle()
            now = self._clock()
            ports = [one.port for one in self._listeners if one.node == node and one.waits(now)]
            return f"{_text(before, seconds)}{''.join(map(listening, ports))}"

        tree.add(TABLE, table)


def is_taken(tree: Tree, port: int, seconds: float) -> bool:
    """Whether a socket of the node listens on a port, as its /proc/net/tcp shows."""
    table = _text(tree.files.get(TABLE, ""), seconds)
    return re.search(rf"^ *\d+: [0-9A-F]{{8}}:{port:04X} 00000000:0000 0A ", table, re.M) is not None


def _text(content: Content, seconds: float) -> str:
    told = content(seconds) if callable(content) else content
    return told if isinstance(told, str) else told.decode()
