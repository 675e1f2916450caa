"""NCCL's files on a simulated node: /etc/nccl.conf, and the topology file of a cloud's image."""

from __future__ import annotations

from probes.facts.jobs.nccl_conf import NCCL_CONF
from probes.nccl.topology_xml import GPU_CLASS, VERSION, Element, xml_text
from probes.simulation.node.model.description import TopologyFileDescription
from probes.simulation.node.model.tree import Tree

_SWITCH = "0x060400"
_CLASSES = {True: f"{GPU_CLASS}0200", False: "0x020700"}


def add_nccl_files(tree: Tree) -> None:
    """Add the files that the description has."""
    conf, topology = tree.description.system.nccl_conf, tree.description.topology_file
    if conf:
        tree.add(NCCL_CONF, conf)
    if topology is not None:
        gpus = frozenset(gpu.bdf for gpu in tree.gpus)
        tree.add(topology.path, xml_text(_system(topology, gpus)))


def _system(topology: TopologyFileDescription, gpus: frozenset[str]) -> Element:
    """Return the file: bridges with bus IDs that no machine has, as Azure's files have them."""
    speed, width = topology.link
    link = {"link_speed": speed, "link_width": width}
    cpus: list[Element] = []
    number = 0
    for numa, groups in enumerate(topology.numa):
        switches: list[Element] = []
        for group in groups:
            number += 1
            buses = group.split()
            below = (Element("pci", {"busid": bus, "class": _CLASSES[bus in gpus], **link}) for bus in buses)
            ids = {"busid": f"ffff:ff:{number:02x}.0", "class": _SWITCH}
            switches.append(Element("pci", {**ids, **link}, tuple(below)))
        cpus.append(Element("cpu", {"numaid": str(numa)}, tuple(switches)))
    return Element("system", {"version": VERSION}, tuple(cpus))
