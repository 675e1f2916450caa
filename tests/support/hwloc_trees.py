"""The trees of hwloc's tests, and what lstopo prints of them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

TREES = [
    "2pa-pcidomain32bits",
    "32amd64-4s2n4c-cgroup2",
    "32em64t-2n8c+dax+nvme+mic+dimms",
    "48amd64-4pa2n6c-sparse",
    "fakepcilocalities",
    "nvidiagpunumanodes",
    "offline-cpu0-node0",
]
# The smallest, and the one with GPUs: to unpack the others takes seconds.
USUAL_TREES = {"2pa-pcidomain32bits", "nvidiagpunumanodes", "offline-cpu0-node0"}


def expected_numa_nodes(text: str) -> set[int]:
    if text.startswith("<?xml"):
        tree = ElementTree.fromstring(text)
        # All of the machine's, a cgroup's limits apart: gdrtop looks at the node, not at what it may use.
        (machine,) = (o for o in tree.iter("object") if o.get("type") == "Machine")
        return bits(machine.get("complete_nodeset", ""))
    return {int(number) for number in re.findall(r"NUMANode L#\d+ \(P#(\d+)", text)}


def expected_functions(text: str) -> dict[str, tuple[int, int, int]]:
    """BDF -> class (16 bits), vendor, device, of the functions hwloc lists, bridges with upstream PCI too."""
    found: dict[str, tuple[int, int, int]] = {}
    if text.startswith("<?xml"):
        for element in ElementTree.fromstring(text).iter("object"):
            kind = re.match(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\]", element.get("pci_type", ""))
            if kind:
                code, vendor, device = (int(part, 16) for part in kind.groups())
                found[element.get("pci_busid", "")] = code, vendor, device
        return found
    pattern = r"(?:busid|PCIBridge.*?busid)=([0-9a-f:.]+) id=([0-9a-f]{4}):([0-9a-f]{4}) class=([0-9a-f]{4})"
    for bdf, vendor, device, code in re.findall(pattern, text):
        found[bdf] = int(code, 16), int(vendor, 16), int(device, 16)
    return found


def expected_locality(text: str) -> dict[str, set[int]]:
    """BDF -> NUMA nodes near it, by the nodeset of the nearest object above that has one."""
    found: dict[str, set[int]] = {}

    def walk(node_element: ElementTree.Element, nodes: set[int]) -> None:
        if node_element.get("nodeset"):
            nodes = bits(node_element.get("nodeset", ""))
        if node_element.get("pci_busid"):
            found[node_element.get("pci_busid", "")] = nodes
        for child in node_element.findall("object"):
            walk(child, nodes)

    walk(ElementTree.fromstring(text), set())
    return found


def bits(text: str) -> set[int]:
    words = [int(word, 16) for word in text.split(",")]
    value = 0
    for word in words:
        value = value << 32 | word
    return {number for number in range(value.bit_length()) if value >> number & 1}
