"""The graph of the node finds what networkx finds."""

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from probes.topology.undirected_graph import UndirectedGraph

NAMES = [f"0000:{bus:02x}:00.0" for bus in range(8)]
TYPES = st.sampled_from(("PCIe", "SMP", "NVLink"))
EDGES = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES), TYPES))


def both(edges: list[tuple[str, str, str]]) -> "tuple[UndirectedGraph, nx.Graph[str]]":
    """Return the same graph, ours and networkx's."""
    ours, theirs = UndirectedGraph(), nx.Graph()
    for graph in (ours, theirs):
        for name in NAMES:
            graph.add_node(name, kind="switch")
        for a, b, kind in edges:
            graph.add_edge(a, b, type=kind)
    return ours, theirs


@given(EDGES)
def test_it_has_the_nodes_and_edges_of_networkx(edges: list[tuple[str, str, str]]) -> None:
    ours, theirs = both(edges)
    assert ours.nodes == dict(theirs.nodes)
    assert list(ours.edges()) == list(theirs.edges(data=True))
    for a in NAMES:
        assert ours.adj[a] == dict(theirs.adj[a])
        assert ours.edge(a, NAMES[0]) == theirs.get_edge_data(a, NAMES[0], {})
        assert ours.has_edge(a, NAMES[0]) is theirs.has_edge(a, NAMES[0])


@given(EDGES)
def test_its_routes_are_those_of_networkx(edges: list[tuple[str, str, str]]) -> None:
    ours, theirs = both(edges)
    kinds = ("PCIe", "SMP")
    used = nx.Graph()
    used.add_nodes_from(NAMES)
    used.add_edges_from((a, b) for a in NAMES for b, edge in theirs.adj[a].items() if edge["type"] in kinds)
    for start in NAMES:
        routes = ours.shortest_routes(start, kinds)
        lengths = dict(nx.single_source_shortest_path_length(used, start))
        assert {name: len(route) - 1 for name, route in routes.items()} == lengths
        assert all(nx.is_path(used, route) and route[0] == start for route in routes.values())


def test_what_is_not_in_the_graph_has_no_edges_and_no_routes() -> None:
    ours, _ = both([(NAMES[0], NAMES[1], "PCIe")])
    assert len(ours) == len(NAMES)
    assert "0000:ff:00.0" not in ours
    assert not ours.has_edge("0000:ff:00.0", NAMES[0])
    assert ours.edge("", NAMES[0]) == {}
    assert ours.shortest_routes("0000:ff:00.0", ("PCIe",)) == {}
