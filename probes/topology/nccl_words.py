"""NCCL's words for what lies between GPUs and NICs, by NCCL's rules (2.30: src/graph/xml.cc, paths.cc)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from probes.base.unknown import Unknown
from probes.facts.pci.functions import PciFunction, PciKind

UNKNOWN_NUMA = -1  # NCCL takes the kernel's -1 as a NUMA node of its own
_BROADCOM, _AMAZON = 0x1000, 0x1D0F
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


@dataclass(frozen=True)
class Seat:
    """Where NCCL sees a function in its tree."""

    bus_id: str  # of a NIC: that of function 0 of device 0 of its bus
    switches: tuple[str, ...]  # upstream ports above it, nearest first
    cpu: int  # NUMA node it hangs below


def seat_of(function: PciFunction, functions: Mapping[str, PciFunction]) -> Seat:
    """The switches above a function and the NUMA node above those.

    The ports and virtual functions of a NIC are one device to NCCL: it asks for function 0 of device 0 of
    their bus (net_ib/init.cc), and hangs below an unknown NUMA node what it does not find in sysfs. Amazon's
    EFA goes by a plugin of its own, which names the function itself.
    """
    bus_id = function.bdf
    if function.kind is PciKind.NIC and function.vendor_id != _AMAZON:
        bus_id = f"{function.bdf[:-4]}00.0"
        merged = functions.get(bus_id)
        if merged is None:
            return Seat(bus_id, (), UNKNOWN_NUMA)
        function = merged
    above = switches_above(function, functions)
    # The NUMA node is that of the last PCI device before the root (xml.cc ncclTopoGetXmlFromSys).
    top = functions.get(above[-1], function) if above else function
    numa = UNKNOWN_NUMA if isinstance(top.numa_node, Unknown) else top.numa_node
    return Seat(bus_id, above, numa)


def switches_above(function: PciFunction, functions: Mapping[str, PciFunction]) -> tuple[str, ...]:
    """The switches NCCL sees above a function, nearest first, by the BDF of their upstream ports.

    NCCL walks up in steps of two path elements, which leaves of each switch its upstream port only; what is
    reached with no element left is the CPU. A name with more than four digits of domain ends the walk.
    """
    above: list[str] = []
    place = len(function.chain) - 1
    while place > 1 and all(len(bdf) == _BDF_LENGTH for bdf in function.chain[place - 2 : place]):
        place -= 2
        above.append(function.chain[place])
    return _flattened(above, functions)


def _flattened(above: list[str], functions: Mapping[str, PciFunction]) -> tuple[str, ...]:
    """A Broadcom sub-switch is one with the switch above it: together they carry full bandwidth.

    From the top down, and a switch takes in one level only (topo.cc ncclTopoFlattenBcmSwitches).
    """
    kept: list[str] = []
    open_to_sub: int | None = None
    for bdf in reversed(above):
        switch = functions.get(bdf)
        if open_to_sub is not None and broadcom_generation(switch, 1) == open_to_sub:
            open_to_sub = None
            continue
        kept.append(bdf)
        open_to_sub = broadcom_generation(switch, 0)
    return tuple(reversed(kept))


def broadcom_generation(switch: PciFunction | None, level: int) -> int | None:
    """4 or 5 for the PEX switches that show two levels (topo.cc getBcmGen); level 0 is the upper one."""
    if switch is None or switch.vendor_id != _BROADCOM or not isinstance(switch.subsystem_device_id, int):
        return None
    if switch.subsystem_vendor_id != _BROADCOM:
        return None
    page = switch.subsystem_device_id >> 12
    if switch.device_id == _PEX_GEN4 and page == 0xA:
        return 4
    return 5 if switch.device_id == _PEX_GEN5 and page == level else None


def pci_path(a: Seat, b: Seat) -> Nccl:
    """PIX below one switch, PXB below one root, PHB by one NUMA node, SYS by two (paths.cc:84-94)."""
    if a.bus_id == b.bus_id:
        return Nccl.PIX
    for below, switch in enumerate(a.switches):
        if switch in b.switches:
            return Nccl.PIX if below + b.switches.index(switch) == 0 else Nccl.PXB
    return Nccl.PHB if a.cpu == b.cpu else Nccl.SYS
