"""The graph in forms that other programs read: node-link JSON and Graphviz DOT.

Attributes are plain values; unknown ones are left out. Names come from the node and are not trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Unknown
from probes.topology.graph import C2C, CPU, GPU, INTERNAL, MANAGEMENT, NIC, NUMA_NODE, NVLINK, NVSWITCH, SMP

if TYPE_CHECKING:
    import networkx as nx
    from typing_extensions import NotRequired

_NODE_FACTS = ("kind", "label", "name", "numa_node")
_EDGE_FACTS = (
    *("type", "text", "gbps", "best_gbps", "speed_gtps", "width", "max_speed_gtps", "max_width"),
    *("links", "distance"),
)
_NODE_STYLES = {
    GPU: 'style=filled fillcolor="#d8f0c0"',
    NIC: 'style=filled fillcolor="#d0e4f8"',
    NVSWITCH: 'style=filled fillcolor="#eef7e2"',
    MANAGEMENT: 'style=filled fillcolor="#eeeeee"',
}
_EDGE_STYLES = {
    NVLINK: 'color="#76b900"',
    C2C: 'color="#76b900" penwidth=2',
    SMP: "style=dashed",
    INTERNAL: "color=gray",
}
_COLORS = {"critical": "red", "warning": "orange"}


_GraphKind: TypeAlias = (
    'Literal["NUMA node", "CPU", "host bridge", "root port", "upstream port", "downstream port"]'
    ' | Literal["GPU", "NIC", "NVSwitch", "NVSwitch management", "DMA function", "other"]'
)


class _GraphNode(TypedDict):
    id: str  # BDF of a PCI function; "NUMA 0", "pci0000:15", or "CPU" where no NUMA node is known
    kind: _GraphKind
    label: str  # GPU0, mlx5_0; otherwise the id
    name: NotRequired[str]  # vendor and model
    numa_node: NotRequired[int]
    severity: NotRequired[Literal["critical", "warning"]]  # of the most severe finding about it
    findings: NotRequired[str]  # ids of these findings, as in gdrtop check, separated by ", "


class _GraphEdge(TypedDict):
    source: str
    target: str
    type: Literal["PCIe", "internal", "SMP", "NVLink", "C2C"]  # "internal": inside a CPU or a PCIe switch
    text: NotRequired[str]  # "Gen5 x16, now Gen3 x8", "NV18"
    gbps: NotRequired[float]  # what the link carries each way, 10^9 bits/s; a GPU's link when awake
    best_gbps: NotRequired[float]  # the same at its best
    speed_gtps: NotRequired[float]  # GT/s a lane
    width: NotRequired[int]  # lanes
    max_speed_gtps: NotRequired[float]
    max_width: NotRequired[int]
    degraded: NotRequired[bool]  # it carries less than at its best
    links: NotRequired[int]  # NVLinks or C2C links
    distance: NotRequired[int]  # NUMA distance, as the firmware reports it


class Graph(TypedDict):
    """The topology in the node-link form that networkx.node_link_graph(…, edges="edges") reads."""

    directed: Literal[False]
    multigraph: Literal[False]
    graph: dict[str, object]
    nodes: tuple[_GraphNode, ...]
    edges: tuple[_GraphEdge, ...]


@frozen
class Mark:
    """What findings say about a node of the graph."""

    severity: str  # "critical" or "warning", the worst
    findings: tuple[str, ...]  # their ids


def plain_graph(graph: nx.Graph[str], marks: Mapping[str, Mark]) -> nx.Graph[str]:
    """Return a copy with plain attributes; `marks`, by node, become `severity` and `findings`.

    An edge is `degraded` if it carries less than both of its ends can.
    """
    import networkx as nx

    plain: nx.Graph[str] = nx.Graph()
    for name, facts in graph.nodes.items():
        attributes = {"label": name, **_plain(facts, _NODE_FACTS)}
        if name in marks:
            attributes["severity"] = marks[name].severity
            attributes["findings"] = ", ".join(marks[name].findings)
        plain.add_node(name, **attributes)
    for (a, b), facts in graph.edges.items():
        attributes = _plain(facts, _EDGE_FACTS)
        if "gbps" in attributes and "best_gbps" in attributes:
            attributes["degraded"] = attributes["gbps"] < attributes["best_gbps"]
        plain.add_edge(a, b, **attributes)
    return plain


def _plain(facts: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        value = facts.get(name, "")
        if isinstance(value, float):
            found[name] = round(value, 1)
        elif value != "" and not isinstance(value, Unknown):
            found[name] = printable(value) if isinstance(value, str) else value
    return found


def node_link(plain: nx.Graph[str]) -> dict[str, Any]:
    """Return the graph as networkx.node_link_graph(…, edges="edges") reads it."""
    import networkx as nx

    data: dict[str, Any] = nx.node_link_data(plain, edges="edges")
    return data


def dot(plain: nx.Graph[str], source: str) -> str:
    """Return the graph in the language of Graphviz's dot; `source`: derivation(node), for a comment."""
    lines = [f"// {printable(source)}", "graph gdrtop {"]
    lines += ['  node [shape=box fontname="sans-serif"];', '  edge [fontname="sans-serif"];']
    for name, facts in plain.nodes.items():
        heading = facts["kind"] if facts["label"] == name else facts["label"]
        label = [name] if facts["kind"] in (NUMA_NODE, CPU) else [heading, facts.get("name", ""), name]
        style = _NODE_STYLES.get(facts["kind"], "")
        if "severity" in facts:
            label.append(f"{facts['severity']}: {facts['findings']}")
            style += f" color={_COLORS[facts['severity']]} penwidth=3"
        lines.append(f"  {_quoted(name)} [label={_quoted(*label)} {style}];")
    for (a, b), facts in plain.edges.items():
        label = [facts["text"]] if "text" in facts else []
        if "gbps" in facts:
            label.append(f"{facts['gbps']:.0f} Gb/s")
        style = _EDGE_STYLES.get(facts["type"], "")
        if facts.get("degraded"):
            label.append("degraded")
            style = "color=orange penwidth=3"
        lines.append(f"  {_quoted(a)} -- {_quoted(b)} [label={_quoted(*label)} {style}];")
    return "\n".join([*lines, "}", ""])


def _quoted(*texts: str) -> str:
    """Return lines of text as a quoted string, in which quotes and backslashes mean themselves."""
    escaped = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts if text)
    return '"' + "\\n".join(escaped) + '"'
