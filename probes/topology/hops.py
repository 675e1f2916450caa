"""The elements between two PCI functions, link by link, and nvidia-smi's word for the route."""

from __future__ import annotations

from enum import Enum
from functools import cached_property
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.topology.graph import CPU, HOST_BRIDGE, INTERNAL, NO_LINK, NUMA_NODE, Parts, chain_of

if TYPE_CHECKING:
    import networkx as nx


@frozen
class Hop:
    """One element of a path, with the link that leads to it from the element before."""

    id: str  # BDF, "pci0000:15", "NUMA 0"
    kind: str  # "GPU", "NIC", "downstream port", "upstream port", "root port", "host bridge", "NUMA node"
    link: str  # "PCIe", "SMP", "internal", "" for the first
    gbps: Maybe[float]  # what that link carries each way as it is, a GPU's when awake; 10^9 bits/s
    text: str  # "Gen5 x16, now Gen3 x8"
    best_gbps: Maybe[float] = NO_LINK  # what the link can carry at its best; NICs are chosen by it


@frozen
class Branch:
    """The way from a host bridge down to a function."""

    parts: tuple[str, ...]  # both included
    best_gbps: tuple[float, ...]  # of the weakest link below each part, at its best; infinite: none is known

    def common(self, other: Branch) -> int:
        """Return how many parts two branches share, from the top; 0: they are of different host bridges."""
        count = 0
        for mine, theirs in zip(self.parts, other.parts, strict=False):
            if mine != theirs:
                break
            count += 1
        return count


class Routes:
    """The PCIe routes through a node's parts, in which each host bridge is the root of a tree."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._branches: dict[str, Branch] = {}
        self._over_cpus: dict[tuple[str, str], list[str]] = {}
        self._hops: dict[tuple[str, str], Hop] = {}
        self._numa: dict[str, frozenset[str]] = {}  # host bridge -> NUMA nodes

    @cached_property
    def _cpus(self) -> nx.Graph[str]:
        """The part of the graph above the trees: host bridges, NUMA nodes and what joins them."""
        return self._parts.graph((HOST_BRIDGE, NUMA_NODE, CPU))

    def branch(self, bdf: str) -> Branch:
        """Return the branch of a function whose place in the tree is known."""
        branch = self._branches.get(bdf)
        if branch is None:
            parts = (self._parts.nodes[bdf]["root"], *chain_of(self._parts, bdf))
            best = [known(hop.best_gbps, inf) for hop in self.hops(list(parts))[1:]]
            least = accumulate(reversed(best), min, initial=inf)
            branch = self._branches[bdf] = Branch(parts, tuple(reversed(tuple(least))))
        return branch

    def between(self, a: str, b: str) -> list[str]:
        """Return the shortest route from a to b, both included: up to the first common part, and down."""
        up, down = self.branch(a), self.branch(b)
        common = up.common(down)
        if common:
            return [*reversed(up.parts[common - 1 :]), *down.parts[common:]]
        return [*up.parts[:0:-1], *self._between_bridges(up.parts[0], down.parts[0]), *down.parts[1:]]

    def crosses_host_bridge(self, a: str, b: str) -> bool:
        """Return whether the route from a to b goes through a host bridge or from one to another."""
        return self.branch(a).common(self.branch(b)) <= 1

    def distance(self, a: str, b: str) -> tuple[float, int]:
        """Return what the weakest link carries at its best (infinite: unknown), and the number of hops."""
        up, down = self.branch(a), self.branch(b)
        common = up.common(down)
        top = max(0, common - 1)
        count = len(up.parts) + len(down.parts) - 2 * top - 1
        if not common:
            count += 1 if self._share_numa_node(up.parts[0], down.parts[0]) else 3
        return min(up.best_gbps[top], down.best_gbps[top]), count

    def _between_bridges(self, a: str, b: str) -> list[str]:
        """Return the shortest route between two host bridges; two of one NUMA node are neighbors."""
        if self._share_numa_node(a, b):
            return [a, b]
        route = self._over_cpus.get((a, b))
        if route is None:
            import networkx as nx

            route = self._over_cpus[a, b] = nx.shortest_path(self._cpus, a, b)
        return route

    def _share_numa_node(self, a: str, b: str) -> bool:
        """Return whether two host bridges may be of one NUMA node; if not, a link joins them."""
        of_a, of_b = self._numa_nodes(a), self._numa_nodes(b)
        return not of_a or not of_b or not of_a.isdisjoint(of_b)

    def _numa_nodes(self, bridge: str) -> frozenset[str]:
        found = self._numa.get(bridge)
        if found is None:
            near = (name for name in self._parts.adj[bridge] if self._parts.nodes[name]["kind"] == NUMA_NODE)
            found = self._numa[bridge] = frozenset(near)
        return found

    def hops(self, route: list[str]) -> tuple[Hop, ...]:
        """Return the hops of a route."""
        return tuple(self._hop(a, b) for a, b in zip(["", *route], route, strict=False))

    def _hop(self, before: str, bdf: str) -> Hop:
        hop = self._hops.get((before, bdf))
        if hop is None:
            edge = self._parts.link(before, bdf) or {"type": INTERNAL if before else "", "text": ""}
            kind, gbps = self._parts.nodes[bdf]["kind"], edge.get("gbps", NO_LINK)
            hop = Hop(bdf, kind, edge["type"], gbps, edge["text"], edge.get("best_gbps", NO_LINK))
            self._hops[before, bdf] = hop
        return hop


class Smi(Enum):
    """nvidia-smi's words for a path (`nvidia-smi topo -m` legend), nearest first."""

    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"


BELOW_SWITCH = (Smi.PIX, Smi.PXB)


def smi_path(parts: Parts, up: Branch, down: Branch) -> Maybe[Smi]:
    """Return the word for two functions, by the legend of `topo -m` (nvidia-smi's source is closed).

    Unknown if the route crosses from one host bridge to another and a NUMA node is missing.
    """
    a, b = up.parts[-1], down.parts[-1]
    if a.rpartition(".")[0] == b.rpartition(".")[0]:  # functions of one device
        return Smi.PIX
    common = up.common(down)
    if common > 1:
        # Below the last common port, a downstream port and the device on either side are one switch.
        longest = max(len(up.parts), len(down.parts)) - common
        return Smi.PIX if longest <= 2 else Smi.PXB
    if common:
        return Smi.PHB
    for bdf in (a, b):
        if isinstance(parts.nodes[bdf]["numa_node"], Unknown):
            detail = f"NODE or SYS: the firmware reports no NUMA node for {bdf}"
            return Unknown(Reason.NOT_THERE, f"{parts.nodes[bdf]['sysfs_path']}/numa_node", detail)
    return Smi.NODE if parts.nodes[a]["numa_node"] == parts.nodes[b]["numa_node"] else Smi.SYS
