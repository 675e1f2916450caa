"""The node as a graph: how GPU, NIC and NUMA node hang together, and what lies between any two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpu.gpus import Gpu, GpuFacts
from probes.facts.node import Node
from probes.facts.pci.functions import PciFacts, PciFunction, PciKind
from probes.facts.pci.link_speed import carried
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts, natural
from probes.facts.system.numa import NumaFacts
from probes.topology.hops import Hop, Ways, hops_between, role, ways_of, weakest_of
from probes.topology.nccl_words import ORDER, Nccl, Seat, pci_path, seat_of
from probes.topology.nvlink import has_relay, nvlinks_between, peers_of
from probes.topology.smi_words import Smi, smi_path

if TYPE_CHECKING:  # networkx costs 90 ms at import: paid by the method that builds the graph
    import networkx as nx

_MELLANOX = 0x15B3
_SMI_RANK = {word: rank for rank, word in enumerate(Smi)}


__all__ = ["Endpoint", "Hop", "Nccl", "Path", "Smi", "Topology", "build", "endpoints", "graph_of"]


@dataclass(frozen=True)
class Endpoint:
    """An end of a path: a GPU, or a NIC (an RDMA device; several ports of one NIC are several)."""

    id: str  # GPU: BDF; NIC: RDMA device name. What JSON says in from/to.
    label: str  # "GPU0", "mlx5_0"
    bdf: Maybe[str]
    numa_node: Maybe[int]
    is_gpu: bool


@dataclass(frozen=True)
class Path:
    """What lies between two endpoints."""

    a: str  # Endpoint.id
    b: str
    smi: Maybe[Smi]
    nccl: Maybe[Nccl]  # the way NCCL would take, NVLink and C2C counted in
    nccl_pcie: Maybe[Nccl]  # PCIe alone
    nvlinks: int  # bonded NVLinks between two GPUs ("NV18"), 0 otherwise
    hops: tuple[Hop, ...]
    weakest: int | None  # index of the hop whose link carries least; None if none is known

    @property
    def gbps(self) -> Maybe[float]:
        """What the weakest link carries, 10^9 bits/s each way."""
        if self.weakest is None:
            return Unknown(Reason.NOT_THERE, "max_link_speed", "no link on the way says what it carries")
        return self.hops[self.weakest].gbps

    @property
    def best_gbps(self) -> Maybe[float]:
        """The same with every link at its best, as NCCL takes them (max_link_speed, max_link_width)."""
        best = [hop.best_gbps for hop in self.hops]
        return min((one for one in best if not isinstance(one, Unknown)), default=self.gbps)


@dataclass(frozen=True)
class Topology:
    """Every path between endpoints; the graph is drawn when asked for."""

    node: Node
    gpus: tuple[Endpoint, ...]
    nics: tuple[Endpoint, ...]
    paths: dict[tuple[str, str], Path]  # both orders are there
    best_nics: dict[str, tuple[str, ...]]  # GPU id -> nearest NICs (RDMA names), best first; () none usable

    def path(self, a: str, b: str) -> Path:
        """The path from a to b, hops in that order."""
        return self.paths[a, b]

    def graph(self) -> nx.Graph[str]:
        """The node as a graph; see `graph_of`."""
        return graph_of(self.node, self)


def endpoints(node: Node) -> tuple[tuple[Endpoint, ...], tuple[Endpoint, ...]]:
    """GPUs in index order; NICs in natural order of their RDMA names, then those without an RDMA device.

    A software RDMA device, on no PCI function, is no endpoint: no path leads to it. Nor is a virtual function
    without an RDMA device: it is kept for a guest.
    """
    functions = node.pci.functions if isinstance(node.pci, PciFacts) else {}
    gpus: list[Endpoint] = []
    if isinstance(node.gpus, GpuFacts):
        gpus = [Endpoint(gpu.bdf, f"GPU{gpu.index}", gpu.bdf, gpu.numa_node, True) for gpu in node.gpus.gpus]
    else:
        found = [function for function in functions.values() if function.kind is PciKind.GPU]
        gpus = [Endpoint(one.bdf, f"GPU{n}", one.bdf, one.numa_node, True) for n, one in enumerate(found)]
    nics: list[Endpoint] = []
    claimed: set[str] = set()
    for device in node.rdma.devices if isinstance(node.rdma, RdmaFacts) else ():
        if isinstance(device.bdf, Unknown):
            continue
        claimed.add(device.bdf)
        function = functions.get(device.bdf)
        numa = device.numa_node if function is None else function.numa_node
        nics.append(Endpoint(device.name, device.name, device.bdf, numa, False))
    nics.sort(key=lambda end: natural(end.label))
    for function in functions.values():
        if function.kind is not PciKind.NIC or function.vendor_id != _MELLANOX or function.bdf in claimed:
            continue
        if function.physical_function is None:
            nics.append(Endpoint(function.bdf, function.bdf, function.bdf, function.numa_node, False))
    return tuple(gpus), tuple(nics)


def build(node: Node) -> Topology:
    """Classifies every pair of endpoints and finds the best NICs of every GPU."""
    gpus, nics = endpoints(node)
    functions = node.pci.functions if isinstance(node.pci, PciFacts) else {}
    facts = {gpu.bdf: gpu for gpu in node.gpus.gpus} if isinstance(node.gpus, GpuFacts) else {}
    devices = {one.name: one for one in node.rdma.devices} if isinstance(node.rdma, RdmaFacts) else {}
    paths: dict[tuple[str, str], Path] = {}
    places = [_placed(end, functions) for end in (*gpus, *nics)]
    for number, a in enumerate(places):
        for b in places[number + 1 :]:
            path = _path(a, b)
            if a.end.is_gpu and b.end.is_gpu:
                path = _between_gpus(path, facts)
            paths[path.a, path.b] = path
    _by_cpu_link(paths, gpus, nics, facts, devices)
    _by_nvlink_peer(paths, gpus, nics)
    for a_place in places:
        for b_place in places:
            there = paths.get((b_place.end.id, a_place.end.id))
            if there is not None and (a_place.end.id, b_place.end.id) not in paths:
                paths[a_place.end.id, b_place.end.id] = _back(there, a_place, b_place)
    return Topology(node, gpus, nics, paths, _best_nics(gpus, nics, devices, paths))


@dataclass(frozen=True)
class _Placed:
    """An endpoint, its ways up and down and its seat in NCCL's tree; None where its place is not known."""

    end: Endpoint
    ways: Ways | None
    seat: Seat | None


def _placed(end: Endpoint, functions: Mapping[str, PciFunction]) -> _Placed:
    function = None if isinstance(end.bdf, Unknown) else functions.get(end.bdf)
    if function is None:
        return _Placed(end, None, None)
    seat = seat_of(function, functions) if function.root else None
    return _Placed(end, ways_of(function, functions), seat)


def _path(a: _Placed, b: _Placed) -> Path:
    """PCIe alone, from a to b."""
    if a.ways is None or b.ways is None:
        missing = a if a.ways is None else b
        lost = Unknown(Reason.NOT_THERE, "/sys/bus/pci/devices", f"no PCI function for {missing.end.label}")
        return Path(a.end.id, b.end.id, lost, lost, lost, 0, (), None)
    smi = smi_path(a.ways.function, b.ways.function)
    nccl: Maybe[Nccl]
    if a.seat is None or b.seat is None:
        stray = a.ways.function if a.seat is None else b.ways.function
        detail = f"no host bridge in the path of {stray.bdf}"
        nccl = Unknown(Reason.MALFORMED, stray.sysfs_path, detail)
        return Path(a.end.id, b.end.id, smi, nccl, nccl, 0, (), None)
    nccl = pci_path(a.seat, b.seat)
    hops = hops_between(a.ways, b.ways)
    return Path(a.end.id, b.end.id, smi, nccl, nccl, 0, hops, weakest_of(hops))


def _back(path: Path, a: _Placed, b: _Placed) -> Path:
    """The same path from the other end, a; each link stands before the hop that it leads to."""
    hops = hops_between(a.ways, b.ways) if path.hops and a.ways and b.ways else ()
    weakest = None if path.weakest is None else len(hops) - path.weakest
    return Path(path.b, path.a, path.smi, path.nccl, path.nccl_pcie, path.nvlinks, hops, weakest)


def _between_gpus(path: Path, facts: Mapping[str, Gpu]) -> Path:
    """GPU to GPU: NVLink, a GPU that passes on (NVB), or one CPU that both hang on by C2C."""
    a, b = facts.get(path.a), facts.get(path.b)
    links = nvlinks_between(a, b, facts)
    if links:
        return replace(path, nccl=Nccl.NVL, nvlinks=links)
    if has_relay(a, b, facts):
        return replace(path, nccl=Nccl.NVB)
    if path.nccl is Nccl.PHB and a and b and known(a.c2c_links, 0) and known(b.c2c_links, 0):
        return replace(path, nccl=Nccl.C2C)
    return path


def _by_cpu_link(
    paths: dict[tuple[str, str], Path],
    gpus: Iterable[Endpoint],
    nics: tuple[Endpoint, ...],
    facts: Mapping[str, Gpu],
    devices: Mapping[str, RdmaDevice],
) -> None:
    """P2C: the GPU hangs on its CPU by chip-to-chip links, and the NIC is a nearest one behind that CPU.

    paths.cc:794-810. Nearest are the fastest, and of those the ones by the best type (ncclTopoGetLocal).
    """
    used = [nic.id for nic in nics if not is_down(devices.get(nic.id))]
    rate = max((port_gbps(devices.get(nic)) for nic in used), default=0.0)
    fastest = {nic for nic in used if port_gbps(devices.get(nic)) == rate}
    for gpu in gpus:
        fact = facts.get(gpu.id)
        if fact is None or not known(fact.c2c_links, 0):
            continue
        types = {nic.id: paths[gpu.id, nic.id].nccl for nic in nics}
        nearest = [types[nic] for nic in fastest]
        ranks = [ORDER[word] for word in nearest if not isinstance(word, Unknown)]
        if ranks and min(ranks) < ORDER[Nccl.PHB]:
            continue
        for nic in nics:
            # Of a NIC that is down the rate says nothing: it is shown as it will be.
            if types[nic.id] is Nccl.PHB and (nic.id in fastest or nic.id not in used):
                paths[gpu.id, nic.id] = replace(paths[gpu.id, nic.id], nccl=Nccl.P2C)


def _by_nvlink_peer(
    paths: dict[tuple[str, str], Path], gpus: tuple[Endpoint, ...], nics: tuple[Endpoint, ...]
) -> None:
    """PXN: a GPU far from a NIC goes by NVLink to a GPU that is near it (paths.cc:812-843)."""
    near = (Nccl.PIX, Nccl.PXB, Nccl.P2C)
    direct = {(gpu.id, nic.id): paths[gpu.id, nic.id].nccl for gpu in gpus for nic in nics}
    linked: dict[str, list[str]] = {gpu.id: [] for gpu in gpus}
    for number, a in enumerate(gpus):
        for b in gpus[number + 1 :]:
            if paths[a.id, b.id].nvlinks:
                linked[a.id].append(b.id)
                linked[b.id].append(a.id)
    for gpu in gpus:
        for nic in nics:
            if direct[gpu.id, nic.id] not in (Nccl.PHB, Nccl.SYS):
                continue
            if any(direct[peer, nic.id] in near for peer in linked[gpu.id]):
                paths[gpu.id, nic.id] = replace(paths[gpu.id, nic.id], nccl=Nccl.PXN)


def _best_nics(
    gpus: tuple[Endpoint, ...],
    nics: tuple[Endpoint, ...],
    devices: Mapping[str, RdmaDevice],
    paths: Mapping[tuple[str, str], Path],
) -> dict[str, tuple[str, ...]]:
    """Nearest first: by NCCL's PCIe word, nvidia-smi's, bandwidth, hops; equal ones shared out over GPUs.

    Bandwidth is that of the path and the port together, whichever carries less.
    """
    down = {nic.id: is_down(devices.get(nic.id)) for nic in nics}
    rates = {nic.id: port_gbps(devices.get(nic.id)) for nic in nics}
    names = {nic.id: natural(nic.label) for nic in nics}
    taken = dict.fromkeys(names, 0)
    best: dict[str, tuple[str, ...]] = {}
    for gpu in gpus:

        def distance(nic: Endpoint, gpu: Endpoint = gpu) -> tuple[object, ...]:
            path = paths[gpu.id, nic.id]
            return (
                down[nic.id],
                99 if isinstance(path.nccl_pcie, Unknown) else ORDER[path.nccl_pcie],
                99 if isinstance(path.smi, Unknown) else _SMI_RANK[path.smi],
                -min(rates[nic.id], known(path.best_gbps, rates[nic.id])),
                len(path.hops),
                taken[nic.id],
                names[nic.id],
            )

        order = sorted(nics, key=distance)
        best[gpu.id] = tuple(nic.id for nic in order)
        if order:
            taken[order[0].id] += 1
    return best


def is_down(device: RdmaDevice | None) -> bool:
    """Whether every port is known not to be ACTIVE; a NIC without an RDMA device serves nobody.

    Ports that could not be listed are not known to be down.
    """
    if device is None:
        return True
    states = [port.state for port in device.ports]
    return bool(states) and all(not isinstance(state, Unknown) and state != "ACTIVE" for state in states)


def port_gbps(device: RdmaDevice | None) -> float:
    """The rate of the fastest port, 0 where none is known."""
    ports = device.ports if device else ()
    return max((known(port.rate_gbps, 0.0) for port in ports), default=0.0)


def graph_of(node: Node, topology: Topology) -> nx.Graph[str]:
    """NUMA nodes, host bridges, ports, GPUs, NICs and NVSwitches; edges PCIe, NVLink, SMP with their gbps.

    Node attribute `kind`; edge attributes `kind` and `gbps` (10^9 bits/s each way, None where unknown).
    """
    import networkx as nx

    graph: nx.Graph[str] = nx.Graph()
    functions = node.pci.functions if isinstance(node.pci, PciFacts) else {}
    numas = node.numa.nodes if isinstance(node.numa, NumaFacts) else ()
    for numa in numas:
        graph.add_node(f"NUMA {numa.number}", kind="NUMA node")
    for a in numas:
        for b in numas:
            if a.number < b.number:
                graph.add_edge(f"NUMA {a.number}", f"NUMA {b.number}", kind="SMP", gbps=None)
    ends = [end.bdf for end in (*topology.gpus, *topology.nics) if not isinstance(end.bdf, Unknown)]
    ends.extend(function.bdf for function in functions.values() if function.kind is PciKind.NVSWITCH)
    for bdf in ends:
        function = functions.get(bdf)
        if function is None or not function.root:
            continue
        above = function.root
        graph.add_node(above, kind="host bridge")
        if not isinstance(function.numa_node, Unknown):
            graph.add_edge(f"NUMA {function.numa_node}", above, kind="CPU", gbps=None)
        upper: PciFunction | None = None
        for place, part in enumerate(function.chain):
            here = functions.get(part)
            if here is None:
                continue
            graph.add_node(part, kind=role(here, place))
            gbps = carried(here.link, upper.link if upper else None, here.kind is PciKind.GPU)
            graph.add_edge(above, part, kind="PCIe", gbps=None if isinstance(gbps, Unknown) else gbps)
            above, upper = part, here
    cards = node.gpus.gpus if isinstance(node.gpus, GpuFacts) else ()
    graph.add_nodes_from((gpu.bdf for gpu in cards), kind="GPU")
    for gpu in cards:
        for peer, links in peers_of(gpu).items():
            if peer not in graph:
                graph.add_node(peer, kind="NVSwitch")
            graph.add_edge(gpu.bdf, peer, kind="NVLink", links=links, gbps=None)
    return graph
