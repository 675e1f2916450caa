"""NCCL's words for what lies between GPUs and NICs, by its rules (2.30: src/graph/xml.cc, paths.cc).

A topology file gives NCCL a PCI tree in place of the one in sysfs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from probes.base.frozen import frozen
from probes.base.unknown import known
from probes.facts.pci.functions import PciFunction
from probes.topology.graph import Parts, chain_of, merged_bdf

UNKNOWN_NUMA = -1  # to NCCL the kernel's -1 is a NUMA node of its own
Functions = Mapping[str, Mapping[str, Any]]  # the nodes of Parts
_BROADCOM = 0x1000
_BDF_LENGTH = len("0000:00:00.0")
_PEX_GEN4, _PEX_GEN5 = 0xC010, 0xC030


class Nccl(Enum):
    """NCCL's words (src/graph/topo.cc topoPathTypeStr), nearest first; there is no NODE."""

    NVL = "NVL"
    NVB = "NVB"
    C2C = "C2C"
    PIX = "PIX"
    PXB = "PXB"
    P2C = "P2C"
    PXN = "PXN"
    PHB = "PHB"
    SYS = "SYS"


ORDER = {word: rank for rank, word in enumerate(Nccl)}
# NCCL uses GPUDirect RDMA by default up to these levels; P2C exists only for GPUs with C2C links
# (src/graph/paths.cc ncclTopoCheckGdr: the level is P2C, before 2.29 PXB).
NEAR = (Nccl.PIX, Nccl.PXB, Nccl.P2C)


@frozen
class Seat:
    """Where NCCL sees a function in its tree."""

    bus_id: str  # of a NIC: that of function 0 of device 0 of its bus
    switches: tuple[str, ...]  # upstream ports above it, nearest first
    cpu: int  # the NUMA node above those


def seat_of(parts: Parts, function: PciFunction) -> Seat:
    """Return the switches above a function and the NUMA node above those.

    NCCL puts a NIC below an unknown NUMA node if sysfs does not have the function that it asks for.
    """
    bus_id = merged_bdf(function)
    functions = parts.nodes
    if "sysfs_path" not in functions.get(bus_id, {}):
        return Seat(bus_id, (), UNKNOWN_NUMA)
    above = flattened(upstream_ports(chain_of(parts, bus_id)), functions)
    # The NUMA node is that of the last PCI device before the root (xml.cc ncclTopoGetXmlFromSys).
    top = above[-1] if above and "sysfs_path" in functions[above[-1]] else bus_id
    return Seat(bus_id, above, known(functions[top]["numa_node"], UNKNOWN_NUMA))


def upstream_ports(chain: Sequence[str]) -> tuple[str, ...]:
    """Return the switches that NCCL sees above the end of a chain, nearest first, by their upstream ports.

    NCCL walks up in steps of two path elements, so it sees the upstream port of each switch only; where no
    element is left it has reached the CPU. A name with more than four digits of domain ends the walk.
    """
    above: list[str] = []
    place = len(chain) - 1
    while place > 1 and all(len(bdf) == _BDF_LENGTH for bdf in chain[place - 2 : place]):
        place -= 2
        above.append(chain[place])
    return tuple(above)


def flattened(above: Sequence[str], functions: Functions) -> tuple[str, ...]:
    """Merge a Broadcom sub-switch with the switch above it: together they carry full bandwidth.

    From the top down, and a switch takes in one level only (topo.cc ncclTopoFlattenBcmSwitches).
    """
    kept: list[str] = []
    open_to_sub: int | None = None
    for bdf in reversed(above):
        switch = functions[bdf]
        if open_to_sub is not None and _broadcom_generation(switch, 1) == open_to_sub:
            open_to_sub = None
            continue
        kept.append(bdf)
        open_to_sub = _broadcom_generation(switch, 0)
    return tuple(reversed(kept))


def _broadcom_generation(switch: Mapping[str, Any], level: int) -> int | None:
    """Return 4 or 5 for PEX switches that show two levels (topo.cc getBcmGen); level 0 is the upper one."""
    subsystem = switch.get("subsystem_device_id")
    if not isinstance(subsystem, int) or switch["vendor_id"] != _BROADCOM:
        return None
    if switch["subsystem_vendor_id"] != _BROADCOM:
        return None
    page = subsystem >> 12
    if switch["device_id"] == _PEX_GEN4 and page == 0xA:
        return 4
    return 5 if switch["device_id"] == _PEX_GEN5 and page == level else None


def pci_path(a: Seat, b: Seat) -> Nccl:
    """Return PIX below one switch, PXB below one root, PHB by one NUMA node, SYS by two (paths.cc:84-94)."""
    if a.bus_id == b.bus_id:
        return Nccl.PIX
    for below, switch in enumerate(a.switches):
        if switch in b.switches:
            return Nccl.PIX if below + b.switches.index(switch) == 0 else Nccl.PXB
    return Nccl.PHB if a.cpu == b.cpu else Nccl.SYS


@frozen
class FileTree:
    """The places of PCI functions by a topology file."""

    path: str  # of the file
    seats: Mapping[str, Seat]  # by bus ID in lower case; GPUs, NICs and switches

    def seat(self, found: Seat) -> Seat:
        """Return where NCCL sees a function with this file; `found` is its place by sysfs.

        NCCL keeps the parents that the file gives an element. It asks sysfs about a function that the file
        does not name, and joins the file's tree at the first switch that the file names (src/graph/xml.cc
        ncclTopoGetXmlFromSys).
        """
        if found.bus_id in self.seats:
            return self.seats[found.bus_id]
        for place, switch in enumerate(found.switches):
            if switch in self.seats:
                above = self.seats[switch]
                return Seat(found.bus_id, (*found.switches[: place + 1], *above.switches), above.cpu)
        return found
