"""The paths between GPUs and NICs of a node, read off its graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import cached_property
from itertools import permutations, product
from math import inf
from typing import TYPE_CHECKING

from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.unknown import Maybe, Reason, Unknown, first_unread, known
from probes.facts.node import Node
from probes.facts.pci.functions import PciFacts, PciKind
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts, natural
from probes.topology.endpoints import Endpoint, endpoints, is_down, port_gbps
from probes.topology.graph import DMA, GPU, NIC, NVSWITCH, Parts, build_parts, switches_above, unread_c2c
from probes.topology.hops import Hop, Routes, Smi, smi_path
from probes.topology.nccl_paths import NEAR, ORDER, FileTree, Nccl, NcclPaths

if TYPE_CHECKING:
    import networkx as nx


_SMI_RANK = {word: rank for rank, word in enumerate(Smi)}


@frozen
class Path:
    """What lies between two endpoints."""

    a: str  # Endpoint.id
    b: str
    smi: Maybe[Smi]
    nccl: Maybe[Nccl]  # the path that NCCL would use, NVLink and C2C included
    nccl_pcie: Maybe[Nccl]  # PCIe alone
    nvlinks: int  # bonded NVLinks between two GPUs ("NV18"), 0 otherwise
    by_data_direct: bool  # it ends at a NIC's Data Direct function, which nvidia-smi does not show
    _ends: tuple[str, str] | None = field(compare=False, repr=False)  # BDFs; None: not on the bus
    _routes: Routes = field(compare=False, repr=False)

    @cached_property
    def hops(self) -> tuple[Hop, ...]:
        """The elements from a to b; () if the place of an end is unknown."""
        return self._routes.hops(self._routes.between(*self._ends)) if self._ends else ()

    @property
    def crosses_host_bridge(self) -> bool:
        """Whether a host bridge is among the hops."""
        return self._ends is not None and self._routes.crosses_host_bridge(*self._ends)

    @cached_property
    def weakest(self) -> int | None:
        """The index of the hop whose link carries least; None if no link reports what it carries."""
        carried = [(hop.gbps, at) for at, hop in enumerate(self.hops) if not isinstance(hop.gbps, Unknown)]
        return min(carried)[1] if carried else None

    @property
    def gbps(self) -> Maybe[float]:
        """What the weakest link carries, 10^9 bits/s each way."""
        if self.weakest is None:
            return Unknown(Reason.NOT_THERE, "max_link_speed", "no link on the path reports its bandwidth")
        return self.hops[self.weakest].gbps

    @property
    def best_gbps(self) -> Maybe[float]:
        """The same with every link at its best, as NCCL counts it (max_link_speed, max_link_width)."""
        best = self._routes.distance(*self._ends)[0] if self._ends else inf
        return self.gbps if best == inf else best


@frozen
class Topology:
    """A node's graph, and every path between its endpoints."""

    node: Node
    gpus: tuple[Endpoint, ...]
    nics: tuple[Endpoint, ...]
    file: FileTree | None = None  # the topology file from which NCCL's words come, not sysfs

    @property
    def unread(self) -> Unknown | None:
        """Why GPUs or NICs are missing here although the node may have some; None: these are all."""
        return self.node.pci if isinstance(self.node.pci, Unknown) else first_unread((self.node.rdma,))

    @cached_property
    def parts(self) -> Parts:
        """Everything between the endpoints, as `probes.topology.graph` describes it."""
        return build_parts(self.node, (*self.gpus, *self.nics))

    @cached_property
    def graph(self) -> nx.Graph[str]:
        """The parts as a graph for searches and exports."""
        return self.parts.graph()

    @cached_property
    def devices(self) -> dict[str, RdmaDevice]:
        """The RDMA devices by name."""
        rdma = self.node.rdma.devices if isinstance(self.node.rdma, RdmaFacts) else ()
        return {device.name: device for device in rdma}

    @cached_property
    def ids_by_bdf(self) -> dict[str, tuple[str, ...]]:
        """The NICs of each PCI function: findings about PCIe name functions, drawings name NICs."""
        found: dict[str, tuple[str, ...]] = {}
        for nic in self.nics:
            bdf = known(nic.bdf, nic.id)
            found[bdf] = (*found.get(bdf, ()), nic.id)
        return found

    @cached_property
    def paths(self) -> Paths:
        """The path between every two endpoints, in both directions."""
        return Paths(self)

    @cached_property
    def best_nics(self) -> dict[str, tuple[str, ...]]:
        """GPU id -> NIC ids, nearest first."""
        return self._ranked[0]

    @cached_property
    def best_nic(self) -> dict[str, str]:
        """GPU id -> its nearest NIC; a GPU to which all NICs are equally near has none."""
        best, equal = self._ranked
        return {gpu: nics[0] for gpu, nics in best.items() if nics and gpu not in equal}

    @cached_property
    def _ranked(self) -> tuple[dict[str, tuple[str, ...]], frozenset[str]]:
        return _rank_nics(self)

    @cached_property
    def near_nics(self) -> dict[str, dict[str, Nccl]]:
        """GPU id -> NIC id -> NCCL's word, of the NICs that NCCL counts as near, nearest first."""
        near: dict[str, dict[str, Nccl]] = {}
        for gpu, nics in self.best_nics.items():
            words = ((nic, self.paths.nccl.without_peers(gpu, nic)) for nic in nics)
            near[gpu] = {nic: word for nic, word in words if not isinstance(word, Unknown) and word in NEAR}
        return near

    @cached_property
    def nics_near_gpus(self) -> tuple[str, ...]:
        """The NICs that NCCL counts as near to any GPU."""
        return tuple(dict.fromkeys(nic for near in self.near_nics.values() for nic in near))

    @cached_property
    def near_pairs(self) -> tuple[tuple[str, str], ...]:
        """(GPU id, NIC id) of the pairs that are PIX or PXB by sysfs: few of a node's 65,000."""
        over_pcie = self.paths.nccl.over_pcie
        pairs = ((gpu.id, nic.id) for gpu in self.gpus for nic in self.nics)
        return tuple(pair for pair in pairs if over_pcie(*pair) in NEAR)

    @cached_property
    def kinds_of_paths(self) -> tuple[tuple[Path, int], ...]:
        """One path of each kind between GPUs and NICs, and how many have its words."""
        nccl, places = self.paths.nccl, self.paths.places
        gpus: dict[object, list[str]] = {}
        for gpu in self.gpus:
            alike = places[gpu.id], nccl.peers(gpu.id) | {gpu.id}, nccl.by_cpu_link(gpu.id)
            gpus.setdefault(alike, []).append(gpu.id)
        nics = grouped(((places[nic.id], nccl.gpus_near(nic.id)), nic.id) for nic in self.nics)
        pairs = product(gpus.values(), nics.values())
        return tuple((self.paths[some[0], others[0]], len(some) * len(others)) for some, others in pairs)

    @cached_property
    def bdfs(self) -> dict[str, str]:
        """The BDF of each endpoint by its id; "" where it is unknown."""
        return {end.id: known(end.bdf, "") for end in (*self.gpus, *self.nics)}

    @cached_property
    def labels(self) -> dict[str, str]:
        """What people call GPUs, NICs and NVSwitches, by id and BDF: "GPU0", "mlx5_0", "NVSwitch 83:00.0"."""
        functions = self.node.pci.functions.values() if isinstance(self.node.pci, PciFacts) else ()
        switches = (function.bdf for function in functions if function.kind is PciKind.NVSWITCH)
        found = {bdf: f"NVSwitch {bdf.removeprefix('0000:')}" for bdf in switches}
        found |= {nic.data_direct: f"{nic.label}_dma" for nic in self.nics if nic.data_direct}
        for end in (*self.gpus, *self.nics):
            found |= {end.id: end.label, known(end.bdf, end.id): end.label}
        return found

    @cached_property
    def nic_ends(self) -> dict[str, str]:
        """The function at which each NIC's paths to GPUs end: its own, or its Data Direct function."""
        return {nic.id: known(nic.to_gpus, "") for nic in self.nics}

    @cached_property
    def switches(self) -> dict[str, tuple[str, ...]]:
        """The PCIe switches above each endpoint and NVSwitch: BDF -> upstream ports from the top down."""
        bdfs = (bdf for bdf, facts in self.parts.nodes.items() if facts["kind"] in (GPU, NIC, DMA, NVSWITCH))
        return {bdf: switches_above(self.parts, bdf) for bdf in bdfs}

    def path(self, a: str, b: str) -> Path:
        """Return the path from a to b, hops in that order."""
        return self.paths[a, b]

    def nics_of_nccl(self, gpu: str, among: Iterable[str]) -> tuple[str, ...] | None:
        """Return the NICs that NCCL chooses for a GPU among these; None: a path is unknown.

        The fastest ones, and of those the nearest (src/graph/topo.cc ncclTopoGetLocal). Between sockets NCCL
        counts the SMP link, which carries less than a NIC, so these come last.
        """
        keys: dict[str, tuple[bool, float, int]] = {}
        for name in among:
            path = self.paths.get((gpu, name))
            if path is None or isinstance(path.nccl_pcie, Unknown):
                return None
            word, rate = path.nccl_pcie, port_gbps(self.devices.get(name))
            keys[name] = (word is Nccl.SYS, -min(rate, known(path.best_gbps, rate)), ORDER[word])
        best = min(keys.values(), default=None)
        return tuple(name for name, key in keys.items() if key == best)


class Paths(Mapping[tuple[str, str], Path]):
    """The path between every two endpoints, in both directions; each is found when it is first asked for.

    It keeps no reference to its topology: in a circle, neither would be freed before the next collection.
    """

    def __init__(self, topology: Topology) -> None:
        functions = topology.node.pci.functions if isinstance(topology.node.pci, PciFacts) else {}
        ends, c2c = (topology.gpus, topology.nics), unread_c2c(topology.node)
        self._parts = topology.parts
        self.routes = Routes(self._parts)
        self.nccl = NcclPaths(self._parts, *ends, functions, topology.devices, topology.file, c2c)
        self._ends = {end.id: end for end in (*topology.gpus, *topology.nics)}
        self._place = {end: place for place, end in enumerate(self._ends)}
        self._found: dict[tuple[str, str], Path] = {}
        self._smi: dict[tuple[int, int], Smi] = {}  # by the places of both ends

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each endpoint: of all pairs of two places, only one has to be looked at."""
        return Places(self._ends, self._parts, self.routes, self.nccl).by_end

    def __getitem__(self, pair: tuple[str, str]) -> Path:
        path = self._found.get(pair)
        if path is None:
            a, b = pair
            if a == b:
                raise KeyError(pair)
            self._find(*((a, b) if self._place[a] < self._place[b] else (b, a)))
            path = self._found[pair]
        return path

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return permutations(self._ends, 2)

    def __len__(self) -> int:
        return len(self._ends) * (len(self._ends) - 1)

    def smi(self, a: str, b: str) -> Maybe[Smi]:
        """Return nvidia-smi's word for the path from a to b."""
        pair = self.places[a], self.places[b]
        if pair in self._smi:
            return self._smi[pair]
        over_pcie = self.nccl.over_pcie(a, b)
        if isinstance(over_pcie, Unknown):
            return over_pcie
        branches = (self.routes.branch(known(self._ends[end].bdf, "")) for end in (a, b))
        word = smi_path(self._parts, *branches)
        if not isinstance(word, Unknown):  # the reason names the function
            self._smi[pair] = word
        return word

    def distance(self, a: str, b: str, rate: float) -> tuple[int, int, float, int]:
        """Return the ranks of NCCL's PCIe word and nvidia-smi's, bandwidth (negated) and hops of a path.

        `rate`: what the NIC's port carries, in Gb/s. A node may have 65,000 pairs, so no Path is made.
        """
        over_pcie = self.nccl.over_pcie(a, b)
        if isinstance(over_pcie, Unknown):
            return 99, 99, -rate, 0
        smi = self.smi(a, b)
        gbps, hops = self.routes.distance(*self._functions(a, b))
        if gbps == inf:
            gbps = known(self[a, b].gbps, rate)
        return (ORDER[over_pcie], 99 if isinstance(smi, Unknown) else _SMI_RANK[smi], -min(rate, gbps), hops)

    def _functions(self, a: str, b: str) -> tuple[str, str]:
        """Return the BDFs at both ends of the path: a NIC may reach a GPU by a function of its own."""
        ends = self._ends[a], self._ends[b]
        is_to_gpu = any(end.is_gpu for end in ends)
        first, second = (known(end.to_gpus if is_to_gpu else end.bdf, "") for end in ends)
        return first, second

    def _find(self, a: str, b: str) -> None:
        """Find the path from a to b and back; a GPU comes before a NIC."""
        over_pcie, smi = self.nccl.over_pcie(a, b), self.smi(a, b)
        ends = None if isinstance(over_pcie, Unknown) else self._functions(a, b)
        nccl, links = over_pcie, 0
        if self._ends[b].is_gpu:
            nccl, links = self.nccl.between_gpus(a, b)
        elif self._ends[a].is_gpu:
            nccl = self.nccl.to_nic(a, b)
        back = None if ends is None else ends[::-1]
        direct = self._ends[a].is_gpu and bool(self._ends[b].data_direct)
        self._found[a, b] = Path(a, b, smi, nccl, over_pcie, links, direct, ends, self.routes)
        self._found[b, a] = Path(b, a, smi, nccl, over_pcie, links, direct, back, self.routes)


def build(node: Node, file: FileTree | None = None) -> Topology:
    """Return the topology of a node, with the NICs of every GPU ranked.

    `file`: the topology file that NCCL uses here; its words then come from it, the hops still from sysfs.
    """
    topology = Topology(node, *endpoints(node), file)
    assert topology.best_nics is not None
    return topology


def _rank_nics(topology: Topology) -> tuple[dict[str, tuple[str, ...]], frozenset[str]]:
    """Nearest first: by NCCL's PCIe word, nvidia-smi's, bandwidth, hops; equal ones are shared out over GPUs.

    Bandwidth is that of the path or the port, whichever carries less. A NIC that is down comes last.
    The second value: the GPUs to which several NICs that are up, and no others, are equally near.
    """
    devices, nics = topology.devices, topology.nics
    down = {nic.id: is_down(devices.get(nic.id)) for nic in nics}
    rates = {nic.id: port_gbps(devices.get(nic.id)) for nic in nics}
    names = {nic.id: natural(nic.label) for nic in nics}
    in_order = sorted(names, key=names.__getitem__)
    taken = dict.fromkeys(names, 0)
    places = topology.paths.places
    equal: dict[int, list[list[str]]] = {}  # by the GPU's place: NICs at equal distances, nearest first
    best: dict[str, tuple[str, ...]] = {}
    undecided: set[str] = set()
    up = [name for name, is_off in down.items() if not is_off]
    for gpu in topology.gpus:
        if places[gpu.id] not in equal:
            groups: dict[tuple[object, ...], list[str]] = {}
            for nic in in_order:
                distance = down[nic], topology.paths.distance(gpu.id, nic, rates[nic])
                groups.setdefault(distance, []).append(nic)
            equal[places[gpu.id]] = [groups[key] for key in sorted(groups)]
        groups_of_gpu = equal[places[gpu.id]]
        best[gpu.id] = tuple(nic for group in groups_of_gpu for nic in sorted(group, key=taken.__getitem__))
        if best[gpu.id]:
            taken[best[gpu.id][0]] += 1
            if len(groups_of_gpu[0]) == len(up) > 1:
                undecided.add(gpu.id)
    return best, frozenset(undecided)


class Places:
    """Which endpoints are at one place, as numbers: paths from them are alike, so one stands for all.

    A node with 256 GPUs and 256 NICs has 65,000 pairs, but its 32 switches have 1,000.
    """

    def __init__(self, ends: Mapping[str, Endpoint], parts: Parts, routes: Routes, nccl: NcclPaths) -> None:
        self._ends, self._parts, self._routes, self._nccl = ends, parts, routes, nccl

    @cached_property
    def by_end(self) -> dict[str, int]:
        """The place of each endpoint by its id.

        An endpoint has a place of its own if its place in a tree is unknown, if it shares its bus, or if no
        link above it reports what it carries at its best: then what it carries now decides.
        """
        numbers: dict[object, int] = {}
        return {end: numbers.setdefault(self._key(end), len(numbers)) for end in self._ends}

    @cached_property
    def _below(self) -> Counter[str]:
        """How many functions at which paths end are below each part of the trees."""
        functions = {function for end in self._ends for function in self._functions(end)}
        return Counter(part for bdf in functions for part in self._routes.branch(bdf).parts)

    def _functions(self, end: str) -> tuple[str, ...]:
        """Return the endpoint's own function, and the one at which its paths to GPUs end."""
        functions = known(self._ends[end].bdf, ""), known(self._ends[end].to_gpus, "")
        is_known = not isinstance(self._nccl.seat(end), Unknown)
        is_placed = all(self._parts.nodes.get(bdf, {}).get("root") for bdf in functions)
        return functions if is_known and is_placed else ()

    def _key(self, end: str) -> object:
        """Return everything on which its paths depend, but its own name and port."""
        functions, seat = self._functions(end), self._nccl.seat(end)
        if not functions or isinstance(seat, Unknown):
            return end
        # How many parts of each branch, from the top, are above other functions too.
        found = map(self._routes.branch, functions)
        branches = [(branch, sum(self._below[part] > 1 for part in branch.parts)) for branch in found]
        if any(shared == len(branch.parts) - 1 for branch, shared in branches):
            return end
        best = [branch.best_gbps[: max(1, shared)] for branch, shared in branches]
        if any(inf in gbps for gbps in best):
            return end
        parts = [(len(branch.parts), branch.parts[:shared]) for branch, shared in branches]
        numa = known(self._parts.nodes[functions[0]]["numa_node"], None)
        return seat.switches, seat.cpu, numa, *parts, *best
