"""NCCL's topology XML: as the graph that NCCL searches, and as the sysfs tree behind it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count, permutations
from pathlib import Path

from probes.base.unknown import Unknown
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.node import Node, probe_node
from probes.host.machine.local import LocalHost
from probes.topology.paths import build
from tests.support.trees import MELLANOX, NVIDIA, add_function, add_rdma_device

PIX, PXB, PHB = 4, 5, 8
LINK = {"LOC": 0, "NVL": 1, "C2C": 3, "PCI": 4, "SYS": 9}
WORDS = {0: "LOC", 1: "NVL", 2: "NVB", 3: "C2C", 4: "PIX", 5: "PXB", 8: "PHB", 9: "SYS"}
SWITCH, NVSWITCH = "0x0604", "0x068"


def pairs_below_switches() -> str:
    """The form of Azure/azhpc-images topology/ndv5-topo.xml: each GPU shares a switch with one NIC."""
    gpus = ("0001", "0002", "0003", "0008", "0009", "000a", "000b", "000c")
    switches = (
        f'<pci busid="ffff:ff:0{number}.0" class="0x060400">'
        f'<pci busid="{gpu}:00:00.0" class="0x030200"/>'
        f'<pci busid="010{number}:00:00.0" class="0x020700"/></pci>'
        for number, gpu in enumerate(gpus, 1)
    )
    return f'<system version="1"><cpu numaid="0">{"".join(switches)}</cpu></system>'


@dataclass(eq=False)
class Vertex:
    """A node of NCCL's graph: CPU, PCI (switch), GPU, NIC or NVS."""

    kind: str
    name: str
    ids: int = 0  # vendor, device, subsystem vendor, subsystem device
    links: list[tuple[str, Vertex, float]] = field(default_factory=list)

    def connect(self, other: Vertex, link: str, bandwidth: float) -> None:
        """Add one direction; links of one kind to one vertex add up, the fastest come first."""
        same = [edge for edge in self.links if edge[0] == link and edge[1] is other]
        for edge in same:
            self.links.remove(edge)
            bandwidth += edge[2]
        self.links.append((link, other, bandwidth))
        self.links.sort(key=lambda edge: -edge[2])


def pci_elements(text: str) -> tuple[ElementTree.Element, list[ElementTree.Element]]:
    """Return the system, and its GPUs and NICs in the order of the file."""
    system = ElementTree.fromstring(text)
    ends = [
        element for element in system.iter("pci") if element.get("class", "").startswith(("0x03", "0x02"))
    ]
    return system, [end for end in ends if end.find("pci") is None]


def number(element: ElementTree.Element, name: str) -> int:
    return int(element.get(name, "0x0"), 16)


def bandwidth_of(element: ElementTree.Element) -> float:
    """Return GB/s like NCCL: lanes times the GT/s, less 12 %."""
    speed = element.get("link_speed", "").split(" ")[0]
    return float(element.get("link_width", "16") or 16) * float(speed or 16) * 7.5 / 80


def graph_of(text: str) -> dict[str, Vertex]:
    """Return GPUs and NICs by bus ID, linked like in topo.cc."""
    system, _ = pci_elements(text)
    ends: dict[str, Vertex] = {}
    switches: list[Vertex] = []
    cpus = [Vertex("CPU", cpu.get("numaid", "")) for cpu in system.findall("cpu")]
    fabric = Vertex("NVS", "0")

    def add(element: ElementTree.Element, above: Vertex) -> None:
        kind = element.get("class", "")
        name = element.get("busid", "")
        here = Vertex("GPU" if kind.startswith("0x03") else "NIC" if kind.startswith("0x02") else "PCI", name)
        for part in ("vendor", "device", "subsystem_vendor", "subsystem_device"):
            here.ids = here.ids << 16 | number(element, part)
        here.connect(above, "PCI", bandwidth_of(element))
        above.connect(here, "PCI", bandwidth_of(element))
        if here.kind == "PCI":
            switches.append(here)
        else:
            ends[name] = here
        for child in element.findall("pci"):
            add(child, here)

    for cpu, vertex in zip(system.findall("cpu"), cpus, strict=True):
        for pci in cpu.findall("pci"):
            add(pci, vertex)
    for name, target, links, is_switch in nvlinks(system):
        other = fabric if is_switch else ends.get(target)
        if other is not None:
            ends[name].connect(other, "NVL", 20.0 * links)
            if is_switch:
                other.connect(ends[name], "NVL", 20.0 * links)
    flatten(switches)
    for host_cpu in cpus:
        for other in cpus:
            if host_cpu is not other:
                host_cpu.connect(other, "SYS", 10.0)
    for cpu in cpus:
        up_links_last(cpu, None)
    return ends


def nvlinks(system: ElementTree.Element) -> Iterator[tuple[str, str, int, bool]]:
    """Return the bus ID of the GPU, target, links, and whether the target is an NVSwitch."""
    for pci in system.iter("pci"):
        for link in pci.findall("gpu/nvlink"):
            is_switch = link.get("tclass", "").startswith(NVSWITCH)
            yield pci.get("busid", ""), link.get("target", ""), int(link.get("count", "1")), is_switch


def flatten(switches: list[Vertex]) -> None:
    """Move the links of Broadcom's sub-switches to the switch above."""

    def generation(vertex: Vertex, level: int) -> int:
        top = vertex.ids >> 12
        return 4 if top == 0x1000C0101000A else 5 if top == (0x1000C03010000 | level) else 0

    again = True
    while again:
        again = False
        for upper in switches:
            kind = generation(upper, 0)
            if not kind:
                continue
            below = [
                device
                for _, device, _ in upper.links
                if device.kind == "PCI" and generation(device, 1) == kind
            ]
            for sub in below:
                upper.links = [link for link in upper.links if link[1] is not sub]
                for link, other, bandwidth in sub.links:
                    if other is not upper:
                        upper.links.append((link, other, bandwidth))
                        other.links = [(k, upper if v is sub else v, b) for k, v, b in other.links]
                switches.remove(sub)
            upper.ids |= 0xFFFF
            again = True
            break


def up_links_last(vertex: Vertex, above: Vertex | None) -> None:
    vertex.links.sort(key=lambda edge: edge[1] is above)
    for link, other, _ in list(vertex.links):
        if link == "PCI" and other is not above:
            up_links_last(other, vertex)


def search(base: Vertex) -> dict[str, str]:
    """Return the path type from every GPU and NIC to `base`, like NCCL's search (ncclTopoSetPaths)."""
    found: dict[Vertex, tuple[int, float, int]] = {base: (0, 5000.0, 0)}  # links, bandwidth, type
    now = [base]
    while now:
        following: list[Vertex] = []
        for vertex in now:
            length, width, kind = found[vertex]
            for link, other, bandwidth in vertex.links:
                through_gpu = vertex is not base and vertex.kind == "GPU"
                if through_gpu and (link != "NVL" or other.kind != "GPU" or length > 1):
                    continue
                reached = min(width, bandwidth)
                before = found.get(other)
                if before is not None and not (before[0] > length and before[1] < reached):
                    continue
                step = LINK[link]
                if vertex.kind == other.kind == "PCI":
                    step = PXB
                elif link == "PCI" and "CPU" in (vertex.kind, other.kind):
                    step = PHB
                if vertex.kind == "GPU" and kind == step == LINK["NVL"] and length + 1 > 1:
                    step = 2
                found[other] = (length + 1, reached, max(kind, step))
                if other not in following:
                    following.append(other)
        now = following
    return {
        device.name: WORDS[kind] for device, (_, _, kind) in found.items() if device.kind in ("GPU", "NIC")
    }


def node_of(text: str, root: Path) -> tuple[Node, dict[str, str]]:
    """Return the node behind the XML, with NVLinks, and the endpoint ID of each bus ID.

    Of each switch the XML shows the upstream port only: every device below gets a downstream port.
    """
    system, ends = pci_elements(text)
    names: dict[str, str] = {}
    ports, bridges, devices = count(), count(1), count()

    def add(element: ElementTree.Element, above: tuple[str, ...], numa: int) -> None:
        path = (*above, element.get("busid", ""))
        kind = number(element, "class")
        nic = kind >> 16 == 0x02
        vendor = number(element, "vendor") or (MELLANOX if nic else NVIDIA if kind >> 16 == 3 else 0x8086)
        ids = (vendor, number(element, "device"))
        subsystem = (number(element, "subsystem_vendor"), number(element, "subsystem_device"))
        add_function(root, path, *ids, kind, numa, subsystem=subsystem)
        if element in ends:
            names[path[-1]] = f"mlx5_{next(devices)}" if nic else path[-1]
            if nic:
                add_rdma_device(root, names[path[-1]], path)
        for child in element.findall("pci"):
            port = divmod(next(ports), 32)
            below = (*path, f"fffe:{port[0]:02x}:{port[1]:02x}.0")
            add_function(root, below, *ids, 0x060400, numa, subsystem=subsystem)
            add(child, below, numa)

    for cpu in system.findall("cpu"):
        numa = int(cpu.get("numaid", "-1"))
        for pci in cpu.findall("pci"):
            bridge = next(bridges)
            top = (f"pci{bridge:04x}:f0", f"{bridge:04x}:f0:01.0")
            add_function(root, top, numa_node=numa)
            add(pci, top, numa)
    node = probe_node(LocalHost(str(root)))
    assert isinstance(node.gpus, GpuFacts)
    peers: dict[str, list[tuple[str, int]]] = {}
    for name, target, links, _ in nvlinks(system):
        peers.setdefault(name, []).append((target, links))
    gpus = tuple(replace(gpu, nvlink_peers=tuple(peers.get(gpu.bdf, ()))) for gpu in node.gpus.gpus)
    return replace(node, gpus=replace(node.gpus, gpus=gpus)), names


def words_of_nccl(text: str) -> dict[tuple[str, str], str]:
    """Return the words that NCCL's search finds between GPUs and NICs, by bus IDs."""
    graph = graph_of(text)
    return {(a, b): word for b, end in graph.items() for a, word in search(end).items() if a != b}


def words_of_gdrtop(text: str, root: Path) -> dict[tuple[str, str], str]:
    """Return the same of the node behind the XML, whose tree is written below `root`."""
    node, names = node_of(text, root)
    topology = build(node)
    gpus = {gpu.id for gpu in topology.gpus}
    words = {}
    for a, b in permutations(names, 2):
        path = topology.path(names[a], names[b])
        word = path.nccl if names[a] in gpus and names[b] in gpus else path.nccl_pcie
        words[a, b] = "unknown" if isinstance(word, Unknown) else word.value
    return words
