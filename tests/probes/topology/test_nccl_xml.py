"""NCCL's own topology dumps: gdrtop's NCCL path types equal those NCCL's rule gives on the XML.

The rule is written here a second time, as NCCL has it: a walk over the XML's tree in which a path is as bad
as its worst hop (src/graph/paths.cc ncclTopoSetPaths). The XML shows of each switch its upstream port only,
so the sysfs tree built from it gets a downstream port for each device.
"""

import xml.etree.ElementTree as ElementTree
from itertools import count
from pathlib import Path

import pytest

from probes.base.unknown import Unknown
from probes.facts.node import probe_node
from probes.host.machine.local import LocalHost
from probes.topology.paths import Topology, build
from tests.support.machines import machine_file, machine_files
from tests.support.trees import add_function, add_rdma_device

FILES = [path.name for path in machine_files("nccl_xml", "*topo*.xml")] or ["not here"]
PCI, NIC, GPU = "0x0604", "0x02", "0x03"


class Machine:
    """A tree of switches and devices, as the XML nests them."""

    def __init__(self, text: str) -> None:
        self.system = ElementTree.fromstring(text)
        self.parents = {child: parent for parent in self.system.iter() for child in parent}
        self.devices = [
            pci
            for pci in self.system.iter("pci")
            if pci.get("class", "").startswith((NIC, GPU)) and pci.find("pci") is None
        ]

    def switches(self, device: ElementTree.Element) -> list[ElementTree.Element]:
        """The switches above a device, nearest first."""
        above = []
        while (device := self.parents[device]).tag == "pci":
            above.append(device)
        return above

    def cpu(self, device: ElementTree.Element) -> str:
        while device.tag != "cpu":
            device = self.parents[device]
        return device.get("numaid", "")

    def flattened(self, device: ElementTree.Element) -> list[ElementTree.Element]:
        """Without Broadcom's lower level (topo.cc getBcmGen)."""
        above = self.switches(device)
        return [
            switch
            for number, switch in enumerate(above)
            if not (
                number + 1 < len(above)
                and broadcom(switch, 1)
                and broadcom(switch, 1) == broadcom(above[number + 1], 0)
            )
        ]

    def word(self, a: ElementTree.Element, b: ElementTree.Element) -> str:
        above_a, above_b = self.flattened(a), self.flattened(b)
        for hops, switch in enumerate(above_a):
            if switch in above_b:
                return "PIX" if hops + above_b.index(switch) == 0 else "PXB"
        return "PHB" if self.cpu(a) == self.cpu(b) else "SYS"


def broadcom(switch: ElementTree.Element, level: int) -> int:
    text = "".join(
        switch.get(name, "0x0").removeprefix("0x")
        for name in ("vendor", "device", "subsystem_vendor", "subsystem_device")
    )
    number = int(text or "0", 16) & 0xFFFFFFFFFFFFF000
    if number == 0x1000C0101000A000:
        return 4
    return 5 if number == (0x1000C03010000000 | level * 0x1000) else 0


def grow(machine: Machine, root: Path) -> dict[ElementTree.Element, str]:
    """The sysfs tree behind the XML; gives each device's endpoint id."""
    names: dict[ElementTree.Element, str] = {}
    roots, buses, devices = count(1), count(1), count()

    def number(element: ElementTree.Element, name: str) -> int:
        return int(element.get(name, "0x0"), 16)

    def add(element: ElementTree.Element, above: tuple[str, ...], numa: int) -> None:
        # Bus ids of a made-up file may repeat or be of no real machine: hand out our own.
        bdf = f"{above[0][3:7]}:{next(buses):02x}:00.0"
        kind = number(element, "class")
        path = (*above, bdf)
        ids = (number(element, "vendor"), number(element, "device"))
        subsystem = (number(element, "subsystem_vendor"), number(element, "subsystem_device"))
        if kind >> 8 == 0x0604:
            add_function(root, path, *ids, kind, numa, subsystem=subsystem)
            for slot, child in enumerate(element.findall("pci")):
                port = (*path, f"{bdf[:8]}{slot + 1:02x}.0")
                add_function(root, port, *ids, 0x060400, numa, subsystem=subsystem)
                add(child, port, numa)
            return
        gpu = kind >> 16 == 0x03
        add_function(root, path, 0x10DE if gpu else 0x15B3, ids[1], kind, numa)
        names[element] = bdf
        if not gpu:
            names[element] = f"mlx5_{next(devices)}"
            add_rdma_device(root, names[element], path)

    for cpu in machine.system.findall("cpu"):
        for pci in cpu.findall("pci"):
            bridge = next(roots)
            top = (f"pci{bridge:04x}:00", f"{bridge:04x}:00:01.0")
            add_function(root, top, numa_node=int(cpu.get("numaid", "-1")))
            add(pci, top, int(cpu.get("numaid", "-1")))
    return names


@pytest.mark.parametrize("name", FILES)
def test_path_types_are_those_of_nccls_rule(name: str, tmp_path: Path) -> None:
    machine = Machine(machine_file(f"nccl_xml/{name}").read_text())
    names = grow(machine, tmp_path)
    topology: Topology = build(probe_node(LocalHost(str(tmp_path))))
    if len(machine.devices) < 2:
        pytest.skip("fewer than two devices")
    compared = 0
    for a in machine.devices:
        for b in machine.devices:
            if a is b:
                continue
            word = topology.path(names[a], names[b]).nccl_pcie
            assert not isinstance(word, Unknown)
            assert word.value == machine.word(a, b), (a.get("busid"), b.get("busid"))
            compared += 1
    assert compared == len(machine.devices) * (len(machine.devices) - 1)
