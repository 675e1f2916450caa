"""An undirected graph with attributes: the little of networkx that the paths need, under networkx's names.

Importing networkx costs 0.17 s of CPU time, half of a whole `gdrtop check`; probes/topology/export.py makes a
networkx graph of this one for what other programs read.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

Facts = dict[str, Any]


class UndirectedGraph:
    """Nodes and edges, each with attributes, in the order in which they were added."""

    def __init__(self) -> None:
        self.nodes: dict[str, Facts] = {}
        self.adj: dict[str, dict[str, Facts]] = {}  # node -> neighbor -> attributes of the edge

    def __contains__(self, name: str) -> bool:
        return name in self.nodes

    def __len__(self) -> int:
        return len(self.nodes)

    def add_node(self, name: str, **facts: Any) -> None:
        """Add a node, or attributes to one."""
        self.nodes.setdefault(name, {}).update(facts)
        self.adj.setdefault(name, {})

    def add_edge(self, a: str, b: str, **facts: Any) -> None:
        """Add an edge, or attributes to one; both ends must be nodes."""
        edge = self.adj[a].setdefault(b, {})
        edge.update(facts)
        self.adj[b][a] = edge

    def has_edge(self, a: str, b: str) -> bool:
        """Return whether an edge joins the two."""
        return b in self.adj.get(a, {})

    def edge(self, a: str, b: str) -> Mapping[str, Any]:
        """Return the attributes of an edge; empty where there is none."""
        return self.adj.get(a, {}).get(b, {})

    def edges(self) -> Iterator[tuple[str, str, Facts]]:
        """Yield both ends and the attributes of each edge once."""
        seen: set[str] = set()
        for a, neighbors in self.adj.items():
            yield from ((a, b, facts) for b, facts in neighbors.items() if b not in seen)
            seen.add(a)

    def shortest_routes(self, start: str, types: Container[str]) -> dict[str, list[str]]:
        """Return the shortest route to each node that edges of these types lead to, both ends included."""
        routes = {start: [start]} if start in self.nodes else {}
        nearest = list(routes)
        while nearest:
            farther = []
            for name in nearest:
                for neighbor, facts in self.adj[name].items():
                    if neighbor not in routes and facts["type"] in types:
                        routes[neighbor] = [*routes[name], neighbor]
                        farther.append(neighbor)
            nearest = farther
        return routes
