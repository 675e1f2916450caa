"""The paths between GPUs and NICs of a node, read off its graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.node import Node
from probes.facts.pci.functions import PciFacts, PciFunction
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts, natural
from probes.topology.endpoints import Endpoint, endpoints, is_down, port_gbps
from probes.topology.file_tree import FileTree
from probes.topology.graph import GPU, NIC, NVSWITCH, build_graph, switches_above
from probes.topology.hops import Hop, Routes, weakest_of
from probes.topology.nccl_words import ORDER, Nccl, Seat, pci_path, seat_of
from probes.topology.nvlink import has_c2c, has_relay, nvlinks_between
from probes.topology.smi_words import Smi, smi_path

if TYPE_CHECKING:
    import networkx as nx

_SMI_RANK = {word: rank for rank, word in enumerate(Smi)}


@dataclass(frozen=True)
class Path:
    """What lies between two endpoints."""

    a: str  # Endpoint.id
    b: str
    smi: Maybe[Smi]
    nccl: Maybe[Nccl]  # the path that NCCL would use, NVLink and C2C included
    nccl_pcie: Maybe[Nccl]  # PCIe alone
    nvlinks: int = 0  # bonded NVLinks between two GPUs ("NV18"), 0 otherwise
    hops: tuple[Hop, ...] = ()
    weakest: int | None = None  # index of the hop whose link carries least; None if none is known

    @property
    def gbps(self) -> Maybe[float]:
        """What the weakest link carries, 10^9 bits/s each way."""
        if self.weakest is None:
            return Unknown(Reason.NOT_THERE, "max_link_speed", "no link of the path reports what it carries")
        return self.hops[self.weakest].gbps

    @property
    def best_gbps(self) -> Maybe[float]:
        """The same with every link at its best, as NCCL counts it (max_link_speed, max_link_width)."""
        best = (hop.best_gbps for hop in self.hops)
        return min((gbps for gbps in best if not isinstance(gbps, Unknown)), default=self.gbps)


@dataclass(frozen=True)
class Topology:
    """A node's graph, and every path between its endpoints."""

    node: Node
    gpus: tuple[Endpoint, ...]
    nics: tuple[Endpoint, ...]
    paths: dict[tuple[str, str], Path]  # in both directions
    best_nics: dict[str, tuple[str, ...]]  # GPU id -> NIC ids, nearest first
    file: FileTree | None = None  # the topology file from which NCCL's words come, not sysfs

    @cached_property
    def graph(self) -> nx.Graph[str]:
        """Everything between the endpoints, as `probes.topology.graph` describes it."""
        return build_graph(self.node, (*self.gpus, *self.nics))

    @cached_property
    def switches(self) -> dict[str, tuple[str, ...]]:
        """The PCIe switches above each endpoint and NVSwitch: BDF -> upstream ports from the top down."""
        kinds = (GPU, NIC, NVSWITCH)
        bdfs = (bdf for bdf, facts in self.graph.nodes.items() if facts["kind"] in kinds)
        return {bdf: switches_above(self.graph, bdf) for bdf in bdfs}

    def path(self, a: str, b: str) -> Path:
        """Return the path from a to b, hops in that order."""
        return self.paths[a, b]


def build(node: Node, file: FileTree | None = None) -> Topology:
    """Classify every pair of endpoints and rank the NICs of every GPU.

    `file`: the topology file that NCCL uses here; its words then come from it, the hops still from sysfs.
    """
    gpus, nics = endpoints(node)
    topology = Topology(node, gpus, nics, {}, {}, file)
    rdma = node.rdma.devices if isinstance(node.rdma, RdmaFacts) else ()
    devices = {device.name: device for device in rdma}
    if len(gpus) + len(nics) > 1:
        _find_paths(topology, node.pci.functions if isinstance(node.pci, PciFacts) else {})
        _by_cpu_link(topology, devices)
        _by_nvlink_peer(topology)
    topology.best_nics.update(_best_nics(topology, devices))
    return topology


def _find_paths(topology: Topology, functions: Mapping[str, PciFunction]) -> None:
    """Fill in the path between every two endpoints, both ways."""
    routes = Routes(topology.graph)
    ends = (*topology.gpus, *topology.nics)
    seats = [_seat(topology, end, functions.get(known(end.bdf, ""))) for end in ends]
    for (a, of_a), (b, of_b) in combinations(zip(ends, seats, strict=True), 2):
        there, back = _paths(routes, a, of_a, b, of_b)
        if a.is_gpu and b.is_gpu:
            there, back = (_between_gpus(topology.graph, path) for path in (there, back))
        topology.paths[a.id, b.id], topology.paths[b.id, a.id] = there, back


def _seat(topology: Topology, end: Endpoint, function: PciFunction | None) -> Maybe[Seat]:
    """Return an endpoint's seat in NCCL's tree."""
    if function is None:
        return Unknown(Reason.NOT_THERE, "/sys/bus/pci/devices", f"no PCI function for {end.label}")
    if not function.root:
        return Unknown(Reason.MALFORMED, function.sysfs_path, f"no host bridge in the path of {function.bdf}")
    seat = seat_of(topology.graph, function)
    return seat if topology.file is None else topology.file.seat(seat)


def _paths(
    routes: Routes, a: Endpoint, of_a: Maybe[Seat], b: Endpoint, of_b: Maybe[Seat]
) -> tuple[Path, Path]:
    """Return the paths from a to b and back, over PCIe alone."""
    for seat in (of_a, of_b):
        if isinstance(seat, Unknown):
            return Path(a.id, b.id, seat, seat, seat), Path(b.id, a.id, seat, seat, seat)
    assert isinstance(of_a, Seat)
    assert isinstance(of_b, Seat)
    route = routes.between(known(a.bdf, ""), known(b.bdf, ""))
    smi, nccl = smi_path(routes.graph, route), pci_path(of_a, of_b)
    hops, back = routes.hops(route), routes.hops(route[::-1])
    return (
        Path(a.id, b.id, smi, nccl, nccl, 0, hops, weakest_of(hops)),
        Path(b.id, a.id, smi, nccl, nccl, 0, back, weakest_of(back)),
    )


def _between_gpus(graph: nx.Graph[str], path: Path) -> Path:
    """GPU to GPU: NVLink, a GPU that relays (NVB), or C2C links of both to one CPU."""
    links = nvlinks_between(graph, path.a, path.b)
    if links:
        return replace(path, nccl=Nccl.NVL, nvlinks=links)
    if has_relay(graph, path.a, path.b):
        return replace(path, nccl=Nccl.NVB)
    if path.nccl is Nccl.PHB and has_c2c(graph, path.a) and has_c2c(graph, path.b):
        return replace(path, nccl=Nccl.C2C)
    return path


def _by_cpu_link(topology: Topology, devices: Mapping[str, RdmaDevice]) -> None:
    """P2C: the GPU is attached to its CPU by chip-to-chip links, and the NIC is a nearest one of that CPU.

    paths.cc:794-810. Nearest are the fastest, and of those the ones with the best type (ncclTopoGetLocal).
    """
    used = [nic.id for nic in topology.nics if not is_down(devices.get(nic.id))]
    rate = max((port_gbps(devices.get(nic)) for nic in used), default=0.0)
    fastest = {nic for nic in used if port_gbps(devices.get(nic)) == rate}
    for gpu in topology.gpus:
        if not has_c2c(topology.graph, gpu.id):
            continue
        types = {nic.id: topology.path(gpu.id, nic.id).nccl for nic in topology.nics}
        ranks = [ORDER[word] for nic in fastest if not isinstance(word := types[nic], Unknown)]
        if ranks and min(ranks) < ORDER[Nccl.PHB]:
            continue
        for nic, word in types.items():
            # The rate of a NIC that is down means nothing: it is shown as it will be.
            if word is Nccl.PHB and (nic in fastest or nic not in used):
                _set_nccl(topology, gpu.id, nic, Nccl.P2C)


def _by_nvlink_peer(topology: Topology) -> None:
    """PXN: a GPU far from a NIC uses NVLink to a GPU that is near it (paths.cc:812-843)."""
    near = (Nccl.PIX, Nccl.PXB, Nccl.P2C)
    gpus = [gpu.id for gpu in topology.gpus]
    direct = {(gpu, nic.id): topology.path(gpu, nic.id).nccl for gpu in gpus for nic in topology.nics}
    for (gpu, nic), word in direct.items():
        if word not in (Nccl.PHB, Nccl.SYS):
            continue
        linked = (peer for peer in gpus if peer != gpu and topology.path(gpu, peer).nvlinks)
        if any(direct[peer, nic] in near for peer in linked):
            _set_nccl(topology, gpu, nic, Nccl.PXN)


def _set_nccl(topology: Topology, a: str, b: str, word: Nccl) -> None:
    for pair in ((a, b), (b, a)):
        topology.paths[pair] = replace(topology.paths[pair], nccl=word)


def _best_nics(topology: Topology, devices: Mapping[str, RdmaDevice]) -> dict[str, tuple[str, ...]]:
    """Nearest first: by NCCL's PCIe word, nvidia-smi's, bandwidth, hops; equal ones are shared out over GPUs.

    Bandwidth is that of the path or the port, whichever carries less. A NIC that is down comes last.
    """
    nics = topology.nics
    down = {nic.id: is_down(devices.get(nic.id)) for nic in nics}
    rates = {nic.id: port_gbps(devices.get(nic.id)) for nic in nics}
    names = {nic.id: natural(nic.label) for nic in nics}
    taken = dict.fromkeys(names, 0)
    best: dict[str, tuple[str, ...]] = {}
    for gpu in topology.gpus:

        def distance(nic: str, gpu: str = gpu.id) -> tuple[object, ...]:
            path = topology.paths[gpu, nic]
            return (
                down[nic],
                99 if isinstance(path.nccl_pcie, Unknown) else ORDER[path.nccl_pcie],
                99 if isinstance(path.smi, Unknown) else _SMI_RANK[path.smi],
                -min(rates[nic], known(path.best_gbps, rates[nic])),
                len(path.hops),
                taken[nic],
                names[nic],
            )

        best[gpu.id] = tuple(sorted(names, key=distance))
        if best[gpu.id]:
            taken[best[gpu.id][0]] += 1
    return best
