"""The graph of a node: what is attached to what, and by which link.

| nodes: `kind`    | id               |
|------------------|------------------|
| NUMA node, CPU   | "NUMA 0", "CPU"  |
| host bridge      | "pci0000:15"     |
| every other kind | BDF              |

A node of a PCI function has `depth` (1: root port), `root`, `label`, `numa_node`, `sysfs_path` and its ids; a
function that is not listed has `kind` and `depth` alone. An edge has a `type` and a `text`; a PCIe edge also
`gbps` and `best_gbps` (10^9 bits/s each way, as it is and at its best), speeds in GT/s and widths in lanes. A
value may be Unknown.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

from probes.base.unknown import Reason, Unknown, first_unread, known
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.node import Node
from probes.facts.pci.functions import (
    PciFacts,
    PciFunction,
    PciKind,
    capacity,
    carried,
    describe,
    most_of,
    now_of,
)
from probes.facts.rdma.devices import RdmaFacts, is_connectx9
from probes.facts.system.numa import NumaFacts
from probes.topology.endpoints import Endpoint

if TYPE_CHECKING:
    import networkx as nx


NUMA_NODE, CPU, HOST_BRIDGE = "NUMA node", "CPU", "host bridge"
BRIDGES = ROOT_PORT, UPSTREAM, DOWNSTREAM = "root port", "upstream port", "downstream port"
GPU, NIC, NVSWITCH = PciKind.GPU.value, PciKind.NIC.value, PciKind.NVSWITCH.value
MANAGEMENT = PciKind.NVSWITCH_MANAGEMENT.value
DMA = PciKind.DMA.value
PCIE, INTERNAL, SMP, NVLINK, C2C = "PCIe", "internal", "SMP", "NVLink", "C2C"
NO_LINK = Unknown(Reason.NOT_THERE, "", "not a PCIe link")
_IDS = ("vendor_id", "device_id", "subsystem_vendor_id", "subsystem_device_id")
_FACTS = ("root", "sysfs_path", "numa_node", *_IDS)
_AMAZON = 0x1D0F
_VIRTUAL_FUNCTION = 0x101E  # of every ConnectX since ConnectX-6 Dx


class Parts:
    """Named parts with facts, and links with facts: plain dictionaries, of which networkx's graph is made.

    Most rules only ask for the neighbors of a part. networkx takes 0.1 s to import, a third of `gdrtop
    check`, so it is imported where the graph is drawn, searched or exported.
    """

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


def numa_id(number: int) -> str:
    """Return the graph's id of a NUMA node."""
    return f"NUMA {number}"


def build_parts(node: Node, endpoints: Iterable[Endpoint]) -> Parts:
    """Return everything between the endpoints, NVSwitches and NUMA nodes of a node.

    The functions that manage NVSwitches are in it as well, though no path leads to them.
    """
    parts = Parts()
    functions = node.pci.functions if isinstance(node.pci, PciFacts) else {}
    for numa in node.numa.nodes if isinstance(node.numa, NumaFacts) else ():
        if numa.cpulist != "":  # memory of a GPU or an expander is a NUMA node without CPUs
            parts.add(numa_id(numa.number), kind=NUMA_NODE)
    for endpoint in endpoints:
        bdf = known(endpoint.bdf, endpoint.id)
        function = functions.get(bdf)
        if function is None:
            parts.add(bdf, kind=GPU if endpoint.is_gpu else NIC)
        else:
            _add_branch(parts, function, functions)
            first = functions.get(merged_bdf(function))
            if first is not None:
                _add_branch(parts, first, functions)
        labels = parts.nodes[bdf].get("label")
        parts.nodes[bdf]["label"] = f"{labels}, {endpoint.label}" if labels else endpoint.label
        direct = functions.get(endpoint.data_direct)
        if direct is not None:
            _add_branch(parts, direct, functions)
            parts.nodes[direct.bdf]["label"] = f"{endpoint.label}_dma"
    for function in functions.values():
        if function.kind in (PciKind.NVSWITCH, PciKind.NVSWITCH_MANAGEMENT):
            _add_branch(parts, function, functions)
    names = node.pci.names if isinstance(node.pci, PciFacts) else {}
    for bdf, name in names.items():
        if bdf in parts:
            parts.nodes[bdf]["name"] = name
    for device in node.rdma.devices if isinstance(node.rdma, RdmaFacts) else ():
        function = functions.get(known(device.bdf, ""))
        if function is not None and function.device_id == _VIRTUAL_FUNCTION and is_connectx9(device):
            parts.nodes[function.bdf]["name"] = "Mellanox ConnectX-9 virtual function"
    _join_numa_nodes(parts, node)
    _add_gpu_links(parts, node)
    return parts


def merged_bdf(function: PciFunction) -> str:
    """Return the function that NCCL asks for in place of this one.

    The ports and virtual functions of a NIC are one device to NCCL: function 0 of device 0 of their bus
    (net_ib/init.cc). Amazon's EFA uses its own plugin, which names the function itself.
    """
    is_merged = function.kind is PciKind.NIC and function.vendor_id != _AMAZON
    return f"{function.bdf[:-4]}00.0" if is_merged else function.bdf


def _add_branch(parts: Parts, function: PciFunction, functions: Mapping[str, PciFunction]) -> None:
    """Add a function, its host bridge and all ports between them."""
    above, upper = function.root, None
    if above:
        parts.add(above, kind=HOST_BRIDGE)
        if not isinstance(function.numa_node, Unknown):
            numa = numa_id(function.numa_node)
            parts.add(numa, kind=NUMA_NODE)
            _connect(parts, numa, above, INTERNAL)
    for place, bdf in enumerate(function.chain):
        part = functions.get(bdf)
        if bdf not in parts:
            facts = {} if part is None else {name: getattr(part, name) for name in _FACTS}
            parts.add(bdf, kind=_kind(part, place), depth=place + 1, **facts)
            if place:
                kinds = parts.nodes[above]["kind"], parts.nodes[bdf]["kind"]
                parts.join(above, bdf, **_link(upper, part, *kinds))
            elif above:
                _connect(parts, above, bdf, INTERNAL)
        above, upper = bdf, part


def _kind(function: PciFunction | None, place: int) -> str:
    """Return the kind of a chain element; below the root port every second port is an upstream port."""
    if function is not None and function.kind is not PciKind.BRIDGE:
        return str(function.kind.value)
    if place == 0:
        return ROOT_PORT
    return UPSTREAM if place % 2 else DOWNSTREAM


def _connect(parts: Parts, a: str, b: str, kind: str, text: str = "", **more: Any) -> None:
    """Add an edge that is not PCIe, unless the two are connected already."""
    if a != b and b not in parts.adj[a]:
        parts.join(a, b, type=kind, text=text, **more)


def _link(upper: PciFunction | None, lower: PciFunction | None, above: str, below: str) -> dict[str, Any]:
    """Return the edge between two neighbors of a chain, from the link facts of both ends."""
    if (above, below) == (UPSTREAM, DOWNSTREAM):
        return {"type": INTERNAL, "text": "switch"}
    if lower is None:  # the port above reports the same link
        lower, upper, below = upper, None, ""
    if lower is None:
        lost = Unknown(Reason.NOT_THERE, "max_link_speed", "neither end is listed")
        return {"type": PCIE, "text": "link ?", "gbps": lost, "best_gbps": lost}
    other = upper.link if upper else None
    # The link of an idle GPU is slow. The card below a port may be a GPU too, if it is not listed.
    idles = below in ("", GPU)
    (speed, width), (max_speed, max_width) = now_of(lower.link, other, idles), most_of(lower.link, other)
    return {
        "type": PCIE,
        "text": describe(lower.link, other),
        "gbps": carried(lower.link, other, idles),
        "best_gbps": capacity(lower.link, other),
        "speed_gtps": speed,
        "width": width,
        "max_speed_gtps": max_speed,
        "max_width": max_width,
    }


def _of_kind(parts: Parts, kind: str) -> list[str]:
    return [name for name, facts in parts.nodes.items() if facts["kind"] == kind]


def _join_numa_nodes(parts: Parts, node: Node) -> None:
    """Connect the NUMA nodes with each other, and host bridges of no known NUMA node with all of them."""
    numas = _of_kind(parts, NUMA_NODE)
    distances = {}
    for numa in node.numa.nodes if isinstance(node.numa, NumaFacts) else ():
        for other, value in known(numa.distances, {}).items():
            distances[numa_id(numa.number), numa_id(other)] = value
    for a, b in combinations(numas, 2):
        distance = {"distance": distances[a, b]} if (a, b) in distances else {}
        _connect(parts, a, b, SMP, "between sockets", **distance)
    bridges = _of_kind(parts, HOST_BRIDGE)
    stray = [bridge for bridge in bridges if not any(numa in parts.adj[bridge] for numa in numas)]
    if stray:
        parts.add(CPU, kind=CPU)
        for part in (*stray, *numas):
            _connect(parts, CPU, part, INTERNAL)


def _add_gpu_links(parts: Parts, node: Node) -> None:
    """Add NVLinks between GPUs and to NVSwitches, and the chip-to-chip links of GPUs to their CPU."""
    gpus = node.gpus.gpus if isinstance(node.gpus, GpuFacts) else ()
    for gpu in (gpu for gpu in gpus if gpu.bdf in parts):
        # A peer that is not on this node's PCI tree is an NVSwitch: a guest need not see it.
        for peer, links in () if isinstance(gpu.nvlink_peers, Unknown) else gpu.nvlink_peers:
            if peer not in parts:
                parts.add(peer, kind=NVSWITCH)
            _connect(parts, gpu.bdf, peer, NVLINK, f"NV{links}", links=links)
        chip_links = known(gpu.c2c_links, 0)
        if chip_links:
            cpu = CPU if isinstance(gpu.numa_node, Unknown) else numa_id(gpu.numa_node)
            if cpu not in parts:
                parts.add(cpu, kind=CPU if cpu == CPU else NUMA_NODE)
            text = f"C2C x{chip_links}" if chip_links > 1 else "C2C"
            _connect(parts, gpu.bdf, cpu, C2C, text, links=chip_links)


def chain_of(parts: Parts, bdf: str) -> tuple[str, ...]:
    """Return the functions from the root port down to this one; () if its place in the tree is unknown."""
    chain: list[str] = []
    above: str | None = bdf if parts.nodes.get(bdf, {}).get("root") else None
    while above is not None:
        chain.append(above)
        depth = parts.nodes[above]["depth"] - 1
        neighbors = (name for name, edge in parts.adj[above].items() if edge["type"] in (PCIE, INTERNAL))
        above = next((name for name in neighbors if parts.nodes[name].get("depth") == depth), None)
    return tuple(reversed(chain))


def switches_above(parts: Parts, bdf: str) -> tuple[str, ...]:
    """Return the PCIe switches above a function, from the top, by their upstream ports."""
    return tuple(port for port in chain_of(parts, bdf)[:-2] if parts.nodes[port]["kind"] == UPSTREAM)


def root_port(parts: Parts, bdf: str) -> str:
    """Return the root port above a function; "" if it has none or its place is unknown."""
    chain = chain_of(parts, bdf)
    return chain[0] if len(chain) > 1 else ""


def nvlinks_between(parts: Parts, a: str, b: str) -> int:
    """Return the NVLinks that join two GPUs, directly or through NVSwitches; 0 where NVML names none.

    An NVSwitch is also a peer that this virtual machine does not see (NCCL src/graph/xml.cc). A GPU that both
    are connected to switches nothing: see `has_relay`.
    """
    direct = parts.link(a, b)
    if direct.get("type") == NVLINK:
        return int(direct["links"])
    switches = [peer for peer in _common_peers(parts, a, b) if parts.nodes[peer]["kind"] != GPU]
    return min(sum(int(parts.link(gpu, switch)["links"]) for switch in switches) for gpu in (a, b))


def has_relay(parts: Parts, a: str, b: str) -> bool:
    """Return whether a third GPU has NVLinks directly to both: NCCL's NVB (src/graph/paths.cc)."""
    return any(parts.nodes[peer]["kind"] == GPU for peer in _common_peers(parts, a, b))


def _common_peers(parts: Parts, a: str, b: str) -> Iterator[str]:
    """Yield what both GPUs have NVLinks to."""
    for peer, edge in parts.adj[a].items():
        if edge["type"] == NVLINK and parts.link(peer, b).get("type") == NVLINK:
            yield peer


def nvlink_peers(parts: Parts, gpu: str) -> frozenset[str]:
    """Return the GPUs that a GPU has NVLinks to, directly or through NVSwitches (`nvlinks_between`)."""
    found: set[str] = set()
    for peer, edge in parts.adj[gpu].items():
        if edge["type"] != NVLINK or not edge["links"]:
            continue
        if parts.nodes[peer]["kind"] == GPU:
            found.add(peer)
        else:
            others = parts.adj[peer].items()
            found.update(other for other, far in others if far["type"] == NVLINK and far["links"])
    return frozenset(found - {gpu})


def unread_c2c(node: Node) -> dict[str, Unknown]:
    """Return the GPUs that may have chip-to-chip links, which could not be read; x86 CPUs have none."""
    platform = node.platform
    architecture = platform if isinstance(platform, Unknown) else platform.cpu_architecture
    if isinstance(node.gpus, Unknown) or architecture == "x86_64":
        return {}
    unread = {gpu.bdf: first_unread((gpu.c2c_links,)) for gpu in node.gpus.gpus}
    return {bdf: why for bdf, why in unread.items() if why is not None}


def has_c2c(parts: Parts, gpu: str) -> bool:
    """Return whether a GPU is attached to its CPU by chip-to-chip links."""
    return any(edge["type"] == C2C for edge in parts.adj[gpu].values())
