"""This node's PCI tree in the form that NCCL_TOPO_FILE takes.

The elements are `cpu` and `pci`, as in the files that clouds ship (Azure/azhpc-images, topology/). NCCL
adds ranks, NVLinks and NIC ports when a job starts (NVIDIA/nccl src/graph/xml.cc). An attribute that is
unknown here is left out, and NCCL reads it from sysfs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from probes.base.unknown import Maybe, Unknown, known
from probes.facts.pci.functions import PciFacts, PciFunction, most_of
from probes.facts.system.numa import NumaFacts, parse_list
from probes.facts.system.platform import PlatformFacts
from probes.nccl.topology_file import VERSION, Element
from probes.topology.graph import chain_of, merged_bdf
from probes.topology.nccl_paths import UNKNOWN_NUMA, upstream_ports
from probes.topology.paths import Topology

# NCCL's names of CPU architectures (src/graph/xml.cc ncclTopoGetXmlFromCpu).
_ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "arm64", "ppc64le": "ppc64"}
_MASK_BITS = 32


@dataclass
class _Place:
    """A function that is being placed, and those below it by bus ID."""

    attributes: dict[str, str]
    below: dict[str, _Place] = field(default_factory=dict)


def system_of(topology: Topology) -> Element:
    """Return the node as NCCL reads it from sysfs: CPUs, switches, GPUs and NICs in order of bus ID.

    A topology file that is in use plays no part: the result describes the PCI tree that this machine shows.
    """
    node = topology.node
    functions = node.pci.functions if isinstance(node.pci, PciFacts) else {}
    cpus: dict[int, _Place] = {}
    ends = [known(end.bdf, "") for end in (*topology.gpus, *topology.nics)]
    for bdf in (*ends, *(nic.data_direct for nic in topology.nics)):
        function = functions.get(bdf)
        function = functions.get(merged_bdf(function)) if function is not None else None
        if function is None or not function.root:
            continue
        chain = chain_of(topology.parts, function.bdf)
        parts = [part for bdf in reversed(upstream_ports(chain)) if (part := functions.get(bdf)) is not None]
        top = parts[0] if parts else function
        numa = known(top.numa_node, UNKNOWN_NUMA)
        place = cpus.setdefault(numa, _Place(_cpu_attributes(topology, numa)))
        for part in (*parts, function):
            place = place.below.setdefault(part.bdf, _Place(_attributes(part, functions)))
    elements = (_element("cpu", cpus[numa]) for numa in sorted(cpus))
    return Element("system", {"version": VERSION}, tuple(elements))


def _element(name: str, place: _Place) -> Element:
    below = (_element("pci", place.below[bdf]) for bdf in sorted(place.below))
    return Element(name, place.attributes, tuple(below))


def _cpu_attributes(topology: Topology, numa: int) -> dict[str, str]:
    attributes = {"numaid": str(numa)}
    facts, platform = topology.node.numa, topology.node.platform
    nodes = facts.nodes if isinstance(facts, NumaFacts) else ()
    lists = {node.number: known(node.cpulist, "") for node in nodes}
    numbers = {number: parse_list(cpus) or () for number, cpus in lists.items()}
    if numbers.get(numa):
        most = max(max(cpus, default=0) for cpus in numbers.values())
        attributes["affinity"] = cpu_mask(numbers[numa], most + 1)
    if isinstance(platform, PlatformFacts):
        architecture = _ARCHITECTURES.get(known(platform.cpu_architecture, ""))
        if architecture is not None:
            attributes["arch"] = architecture
    return attributes


def cpu_mask(cpus: Iterable[int], count: int) -> str:
    """Return CPUs as the kernel's cpumap writes them: groups of 32 bits in hexadecimal, highest first."""
    mask = sum(1 << cpu for cpu in set(cpus))
    groups = -(-count // _MASK_BITS)
    bits = (1 << _MASK_BITS) - 1
    return ",".join(f"{mask >> (group * _MASK_BITS) & bits:08x}" for group in reversed(range(groups)))


def _attributes(function: PciFunction, functions: dict[str, PciFunction]) -> dict[str, str]:
    """Return the attributes of a function; the link is the best that it and the port above it support."""
    attributes = {"busid": function.bdf}
    ids: tuple[tuple[str, Maybe[int], int], ...] = (
        ("class", function.class_code, 6),
        ("vendor", function.vendor_id, 4),
        ("device", function.device_id, 4),
        ("subsystem_vendor", function.subsystem_vendor_id, 4),
        ("subsystem_device", function.subsystem_device_id, 4),
    )
    for name, value, digits in ids:
        if not isinstance(value, Unknown):
            attributes[name] = f"0x{value:0{digits}x}"
    above = functions.get(function.chain[-2]) if len(function.chain) > 1 else None
    speed, width = most_of(function.link, above.link if above else None)
    if not isinstance(speed, Unknown):
        attributes["link_speed"] = f"{speed:.1f} GT/s PCIe"
    if not isinstance(width, Unknown):
        attributes["link_width"] = str(int(width))
    return attributes
