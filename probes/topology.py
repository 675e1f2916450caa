"""The node as a graph: how GPU, NIC and NUMA node hang together, and what lies between any two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from probes.gpus import Gpu, GpuFacts
from probes.link_speed import capacity, describe
from probes.nccl_paths import ORDER, Nccl, pci_path
from probes.node import Node
from probes.numa import NumaFacts
from probes.pci import PciFacts, PciFunction, PciKind
from probes.rdma import RdmaDevice, RdmaFacts, natural
from probes.smi_paths import Smi, shared, smi_path
from probes.unknown import Maybe, Reason, Unknown, known

if TYPE_CHECKING:  # networkx costs 90 ms at import: paid by the method that builds the graph
    import networkx as nx

_MELLANOX = 0x15B3
_NO_PCIE = Unknown(Reason.NOT_THERE, "", "not a PCIe link")
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
class Hop:
    """One element on the way, with the link that leads to it from the one before."""

    id: str  # BDF, "pci0000:15", "NUMA 0"
    kind: str  # "GPU", "NIC", "downstream port", "upstream port", "root port", "host bridge", "NUMA node"
    link: str  # "PCIe", "SMP", "internal", "" for the first
    gbps: Maybe[float]  # what that link can carry each way, 10^9 bits/s
    text: str  # "Gen5 x16 (now Gen5 x8)"


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

    A software RDMA device, on no PCI function, is no endpoint: no path leads to it.
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
        if function.kind is PciKind.NIC and function.vendor_id == _MELLANOX and function.bdf not in claimed:
            nics.append(Endpoint(function.bdf, function.bdf, function.bdf, function.numa_node, False))
    return tuple(gpus), tuple(nics)


def build(node: Node) -> Topology:
    """Classifies every pair of endpoints and finds the best NICs of every GPU."""
    gpus, nics = endpoints(node)
    functions = node.pci.functions if isinstance(node.pci, PciFacts) else {}
    facts = {gpu.bdf: gpu for gpu in node.gpus.gpus} if isinstance(node.gpus, GpuFacts) else {}
    paths: dict[tuple[str, str], Path] = {}
    ends = (*gpus, *nics)
    for number, a in enumerate(ends):
        for b in ends[number + 1 :]:
            path = _path(a, b, functions)
            if a.is_gpu and b.is_gpu:
                path = _with_nvlink(path, facts.get(a.id), facts.get(b.id))
            paths[a.id, b.id] = path
    _by_cpu_link(paths, gpus, nics, facts)
    _by_nvlink_peer(paths, gpus, nics)
    for (a_id, b_id), path in list(paths.items()):
        paths[b_id, a_id] = reversed_path(path)
    return Topology(node, gpus, nics, paths, _best_nics(node, gpus, nics, paths))


def reversed_path(path: Path) -> Path:
    """The same way from the other end: each link stands before the hop that it leads to."""
    hops: list[Hop] = []
    for number, hop in enumerate(reversed(path.hops)):
        before = path.hops[len(path.hops) - number] if number else None
        link, gbps, text = (before.link, before.gbps, before.text) if before else ("", _NO_PCIE, "")
        hops.append(replace(hop, link=link, gbps=gbps, text=text))
    weakest = None if path.weakest is None else len(hops) - path.weakest
    return replace(path, a=path.b, b=path.a, hops=tuple(hops), weakest=weakest)


def _path(a: Endpoint, b: Endpoint, functions: Mapping[str, PciFunction]) -> Path:
    fa = None if isinstance(a.bdf, Unknown) else functions.get(a.bdf)
    fb = None if isinstance(b.bdf, Unknown) else functions.get(b.bdf)
    if fa is None or fb is None:
        missing = a if fa is None else b
        lost = Unknown(Reason.NOT_THERE, "/sys/bus/pci/devices", f"no PCI function for {missing.label}")
        return Path(a.id, b.id, lost, lost, lost, 0, (), None)
    smi = smi_path(fa, fb)
    nccl = pci_path(fa, fb, functions)
    hops = _hops(fa, fb, functions)
    carried = [(hop.gbps, number) for number, hop in enumerate(hops) if not isinstance(hop.gbps, Unknown)]
    weakest = min(carried)[1] if carried else None
    return Path(a.id, b.id, smi, nccl, nccl, 0, hops, weakest)


def _role(function: PciFunction, place: int) -> str:
    """What an element of a chain is: below the root port, switches come as upstream and downstream ports."""
    if function.kind is not PciKind.BRIDGE:
        return str(function.kind.value)
    if place == 0:
        return "root port"
    return "upstream port" if place % 2 else "downstream port"


def _hops(fa: PciFunction, fb: PciFunction, functions: Mapping[str, PciFunction]) -> tuple[Hop, ...]:
    """From a up to where the ways join, and down to b."""
    same_root = bool(fa.root) and fa.root == fb.root
    common = shared(fa, fb) if same_root else 0
    up = [(bdf, place) for place, bdf in enumerate(fa.chain) if place >= common][::-1]
    down = [(bdf, place) for place, bdf in enumerate(fb.chain) if place >= common]
    hops: list[Hop] = []
    above: PciFunction | None = None
    for bdf, place in (*up, *([(fa.chain[common - 1], common - 1)] if common else []), *down):
        if not common and hops and (bdf, place) == down[0]:
            hops.extend(_cpu_hops(fa, fb, same_root))
            above = None
        here = functions.get(bdf)
        if here is None:
            continue
        kind = _role(here, place)
        if above is None:
            crossed = Hop(bdf, kind, "internal" if hops else "", _NO_PCIE, "")
        else:
            lower, upper = ((above, hops[-1].kind), (here, kind))
            if (bdf, place) in down:
                lower, upper = upper, lower
            crossed = _over(bdf, kind, lower, upper)
        hops.append(crossed)
        above = here
    return tuple(hops)


def _over(bdf: str, kind: str, lower: tuple[PciFunction, str], upper: tuple[PciFunction, str]) -> Hop:
    """The hop to `bdf`: over a PCIe link, or from port to port inside a switch."""
    if (lower[1], upper[1]) == ("downstream port", "upstream port"):
        return Hop(bdf, kind, "internal", _NO_PCIE, "switch")
    links = lower[0].link, upper[0].link
    return Hop(bdf, kind, "PCIe", capacity(*links), describe(*links))


def _cpu_hops(fa: PciFunction, fb: PciFunction, same_root: bool) -> list[Hop]:
    """What lies between two root ports: a host bridge, or two and what joins them."""
    first = Hop(fa.root or "CPU", "host bridge", "internal", _NO_PCIE, "")
    if same_root:
        return [first]
    second = Hop(fb.root or "CPU", "host bridge", "internal", _NO_PCIE, "")
    if isinstance(fa.numa_node, Unknown) or isinstance(fb.numa_node, Unknown) or fa.numa_node == fb.numa_node:
        return [first, second]
    return [
        first,
        Hop(f"NUMA {fa.numa_node}", "NUMA node", "internal", _NO_PCIE, ""),
        Hop(f"NUMA {fb.numa_node}", "NUMA node", "SMP", _NO_PCIE, "between sockets"),
        second,
    ]


def _with_nvlink(path: Path, a: Gpu | None, b: Gpu | None) -> Path:
    """GPU to GPU: bonded NVLinks between the two, or as many as both have to the same switches."""
    if a is None or b is None:
        return path
    links = nvlinks_between(a, b)
    return replace(path, nccl=Nccl.NVL, nvlinks=links) if links else path


def nvlinks_between(a: Gpu, b: Gpu) -> int:
    """NVLinks that join two GPUs, through NVSwitches or straight; 0 where NVML does not say."""
    if isinstance(a.nvlink_peers, Unknown) or isinstance(b.nvlink_peers, Unknown):
        return 0
    of_a, of_b = dict(a.nvlink_peers), dict(b.nvlink_peers)
    if b.bdf in of_a:
        return of_a[b.bdf]
    through = set(of_a) & set(of_b)
    return min(sum(of_a[one] for one in through), sum(of_b[one] for one in through))


def _by_cpu_link(
    paths: dict[tuple[str, str], Path],
    gpus: Iterable[Endpoint],
    nics: tuple[Endpoint, ...],
    facts: Mapping[str, Gpu],
) -> None:
    """P2C: the GPU hangs on its CPU by chip-to-chip links, and the NIC is a nearest one behind that CPU.

    paths.cc:794-810.
    """
    for gpu in gpus:
        fact = facts.get(gpu.id)
        if fact is None or not known(fact.c2c_links, 0):
            continue
        types = {nic.id: paths[gpu.id, nic.id].nccl for nic in nics}
        ranks = [ORDER[word] for word in types.values() if not isinstance(word, Unknown)]
        for nic in nics:
            # The NVML NUMA node of a Grace GPU is its own memory; sysfs names the CPU's.
            if types[nic.id] is Nccl.PHB and ORDER[Nccl.PHB] == min(ranks):
                paths[gpu.id, nic.id] = replace(paths[gpu.id, nic.id], nccl=Nccl.P2C)


def _by_nvlink_peer(
    paths: dict[tuple[str, str], Path], gpus: tuple[Endpoint, ...], nics: tuple[Endpoint, ...]
) -> None:
    """PXN: a GPU far from a NIC goes by NVLink to a GPU that is near it (paths.cc:812-843)."""
    near = (Nccl.PIX, Nccl.PXB, Nccl.P2C)
    direct = {(gpu.id, nic.id): paths[gpu.id, nic.id].nccl for gpu in gpus for nic in nics}
    linked = {
        (a.id, b.id)
        for a in gpus
        for b in gpus
        if a is not b and (paths.get((a.id, b.id)) or paths[b.id, a.id]).nvlinks
    }
    for gpu in gpus:
        for nic in nics:
            if direct[gpu.id, nic.id] not in (Nccl.PHB, Nccl.SYS):
                continue
            if any((gpu.id, peer.id) in linked and direct[peer.id, nic.id] in near for peer in gpus):
                paths[gpu.id, nic.id] = replace(paths[gpu.id, nic.id], nccl=Nccl.PXN)


def _best_nics(
    node: Node, gpus: tuple[Endpoint, ...], nics: tuple[Endpoint, ...], paths: Mapping[tuple[str, str], Path]
) -> dict[str, tuple[str, ...]]:
    """Nearest first: by NCCL's PCIe word, nvidia-smi's, bandwidth, hops; equal ones shared out over GPUs."""
    devices = (
        {device.name: device for device in node.rdma.devices} if isinstance(node.rdma, RdmaFacts) else {}
    )
    taken: dict[str, int] = {}
    best: dict[str, tuple[str, ...]] = {}
    for gpu in gpus:

        def distance(nic: Endpoint, gpu: Endpoint = gpu) -> tuple[object, ...]:
            path = paths[gpu.id, nic.id]
            return (
                is_down(devices.get(nic.id)),
                99 if isinstance(path.nccl_pcie, Unknown) else ORDER[path.nccl_pcie],
                99 if isinstance(path.smi, Unknown) else _SMI_RANK[path.smi],
                -port_gbps(devices.get(nic.id)),
                taken.get(nic.id, 0),
                len(path.hops),
                natural(nic.label),
            )

        order = sorted(nics, key=distance)
        best[gpu.id] = tuple(nic.id for nic in order)
        if order:
            taken[order[0].id] = taken.get(order[0].id, 0) + 1
    return best


def is_down(device: RdmaDevice | None) -> bool:
    """Whether every port of a device is known not to be ACTIVE; a NIC without RDMA device serves nobody."""
    if device is None:
        return True
    return all(not isinstance(port.state, Unknown) and port.state != "ACTIVE" for port in device.ports)


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
        if function is None:
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
            graph.add_node(part, kind=_role(here, place))
            gbps = capacity(here.link, upper.link if upper else None)
            graph.add_edge(above, part, kind="PCIe", gbps=None if isinstance(gbps, Unknown) else gbps)
            above, upper = part, here
    for gpu in node.gpus.gpus if isinstance(node.gpus, GpuFacts) else ():
        for peer, links in () if isinstance(gpu.nvlink_peers, Unknown) else gpu.nvlink_peers:
            if peer not in graph:
                graph.add_node(peer, kind="NVSwitch")
            graph.add_edge(gpu.bdf, peer, kind="NVLink", links=links, gbps=None)
    return graph
