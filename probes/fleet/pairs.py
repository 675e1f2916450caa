"""The schedule of tests between pairs of nodes: rounds of disjoint pairs, and how long they take."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence

from probes.base.frozen import frozen


@frozen
class NodePair:
    """Two nodes that measure between each other."""

    server: str
    client: str

    @property
    def key(self) -> frozenset[str]:
        """Both nodes, in no order."""
        return frozenset((self.server, self.client))


Round = tuple[NodePair, ...]
"""Pairs without a common node, measured at the same time."""


def all_rounds(nodes: Sequence[str]) -> Iterator[Round]:
    """Yield rounds in which every two nodes meet exactly once, by the circle method.

    n nodes need n - 1 rounds, or n if n is odd. The sides alternate, so that each node is server in about
    half of its tests.
    """
    if len(nodes) < 2:
        return
    circle: deque[str | None] = deque(nodes)
    if len(circle) % 2:
        circle.append(None)  # whoever meets it is idle
    fixed = circle.popleft()
    for number in range(len(circle)):
        order = (fixed, *circle)
        pairs = []
        for place in range(len(order) // 2):
            ends = order[place], order[-1 - place]
            # The fixed node changes sides every round; the others change theirs as they move on.
            server, client = ends[::-1] if (number if place == 0 else place) % 2 else ends
            if server is not None and client is not None:
                pairs.append(NodePair(server, client))
        yield tuple(pairs)
        circle.rotate(1)


def count_rounds(nodes: int) -> int:
    """Return the number of rounds of `all_rounds`."""
    return 0 if nodes < 2 else nodes - 1 + nodes % 2


def quick_rounds(nodes: Sequence[str]) -> tuple[Round, ...]:
    """Return one round with each node once; if their number is odd, a second one with the node that is left.

    Neighbors in the list are not paired: they often share a rack, a leaf switch and its fault.
    """
    half = len(nodes) // 2
    pairs = tuple(NodePair(nodes[place], nodes[half + place]) for place in range(half))
    left = (NodePair(nodes[-1], nodes[0]),) if len(nodes) % 2 and half else ()
    return tuple(filter(None, (pairs, left)))


def repeated_rounds(
    suspects: Iterable[str], good: Sequence[str], earlier: Collection[frozenset[str]], times: int = 2
) -> tuple[Round, ...]:
    """Return rounds in which each suspect meets `times` different good nodes that it has not met yet.

    With fewer good nodes than suspects there are more rounds; with too few, fewer meetings. A suspect is the
    client in its first meeting and the server in its second, so that both directions are measured.
    """
    met = set(earlier)
    rounds: list[Round] = []
    for meeting in range(times):
        waiting = list(suspects)
        while waiting:
            free, pairs, later = deque(good), [], []
            for suspect in waiting:
                partner = next((node for node in free if frozenset((suspect, node)) not in met), None)
                if partner is None:
                    later.append(suspect)
                    continue
                free.remove(partner)
                pair = NodePair(suspect, partner) if meeting % 2 else NodePair(partner, suspect)
                met.add(pair.key)
                pairs.append(pair)
            if not pairs:
                break
            rounds.append(tuple(pairs))
            waiting = later
    return tuple(rounds)


def seconds_of(rounds: int, memories: int, rail_groups: int, test_seconds: float) -> float:
    """Return how long rounds take; `rail_groups`: how many times a pair measures some of its rails."""
    return rounds * memories * rail_groups * test_seconds
