"""The parts of a node and the links between them: plain dictionaries, of which networkx's graph is made.

Most rules only ask for the neighbors of a part. networkx takes 0.1 s to import, a third of `gdrtop check`, so
it is imported where the graph is drawn, searched or exported.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx as nx


class Parts:
    """Named parts with facts, and links with facts, as `probes.topology.graph` describes both."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self.adj: dict[str, dict[str, dict[str, Any]]] = {}  # part -> neighbor -> link
        self._links: dict[tuple[str, str], dict[str, Any]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.nodes

    def add(self, name: str, **facts: Any) -> None:
        """Add a part, or facts to one that is there."""
        self.nodes.setdefault(name, {}).update(facts)
        self.adj.setdefault(name, {})

    def join(self, a: str, b: str, **facts: Any) -> None:
        """Link two parts that are not linked yet."""
        self._links[a, b] = self.adj[a][b] = self.adj[b][a] = facts

    def link(self, a: str, b: str) -> dict[str, Any]:
        """Return the facts of the link between two parts; {} if there is none."""
        return self.adj.get(a, {}).get(b, {})

    def graph(self, kinds: Container[str] | None = None) -> nx.Graph[str]:
        """Return everything as a graph, or the parts of these kinds."""
        import networkx as nx

        names = {name for name, facts in self.nodes.items() if kinds is None or facts["kind"] in kinds}
        graph: nx.Graph[str] = nx.Graph()
        graph.add_nodes_from((name, facts) for name, facts in self.nodes.items() if name in names)
        graph.add_edges_from((a, b, facts) for (a, b), facts in self._links.items() if {a, b} <= names)
        return graph
