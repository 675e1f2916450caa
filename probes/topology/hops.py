"""The elements between two PCI functions, link by link, along the shortest route through the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from probes.base.unknown import Maybe, Unknown
from probes.topology.graph import CPU, INTERNAL, NO_LINK, NUMA_NODE, pcie_graph

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True)
class Hop:
    """One element of a path, with the link that leads to it from the element before."""

    id: str  # BDF, "pci0000:15", "NUMA 0"
    kind: str  # "GPU", "NIC", "downstream port", "upstream port", "root port", "host bridge", "NUMA node"
    link: str  # "PCIe", "SMP", "internal", "" for the first
    gbps: Maybe[float]  # what that link carries each way as it is, a GPU's when awake; 10^9 bits/s
    text: str  # "Gen5 x16, now Gen3 x8"
    best_gbps: Maybe[float] = NO_LINK  # what the link can carry at its best; NICs are chosen by it


class Routes:
    """The PCIe routes through a graph."""

    def __init__(self, graph: nx.Graph[str]) -> None:
        self.graph = graph
        self.pcie = pcie_graph(graph)
        self._from: dict[str, dict[str, list[str]]] = {}
        self._hops: dict[tuple[str, str], Hop] = {}

    def between(self, a: str, b: str) -> list[str]:
        """Return the shortest route from a to b, both included; [] where there is none."""
        import networkx as nx

        if a == b:
            return [a]
        if a not in self._from:
            self._from[a] = nx.single_source_shortest_path(self.pcie, a) if a in self.pcie else {}
        return self._from[a].get(b, [])

    def hops(self, route: list[str]) -> tuple[Hop, ...]:
        """Return the hops of a route; two host bridges of one NUMA node are neighbors."""
        kinds = [self.graph.nodes[part]["kind"] for part in route]
        if kinds.count(NUMA_NODE) < 2:
            route = [part for part, kind in zip(route, kinds, strict=True) if kind not in (NUMA_NODE, CPU)]
        return tuple(self._hop(a, b) for a, b in zip(["", *route], route, strict=False))

    def _hop(self, before: str, bdf: str) -> Hop:
        hop = self._hops.get((before, bdf))
        if hop is None:
            edge = self.graph.get_edge_data(before, bdf, {"type": INTERNAL if before else "", "text": ""})
            kind, gbps = self.graph.nodes[bdf]["kind"], edge.get("gbps", NO_LINK)
            hop = Hop(bdf, kind, edge["type"], gbps, edge["text"], edge.get("best_gbps", NO_LINK))
            self._hops[before, bdf] = hop
        return hop


def weakest_of(hops: tuple[Hop, ...]) -> int | None:
    """Return the index of the hop whose link carries least; None if no link reports what it carries."""
    carried = [(hop.gbps, number) for number, hop in enumerate(hops) if not isinstance(hop.gbps, Unknown)]
    return min(carried)[1] if carried else None
