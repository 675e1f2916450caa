"""NCCL's words for what lies between GPUs and NICs, by NCCL's rules (2.30: src/graph/xml.cc, paths.cc)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from probes.pci import PciFunction
from probes.unknown import Unknown

UNKNOWN_NUMA = -1  # NCCL takes the kernel's -1 as a NUMA node of its own
_BROADCOM = 0x1000
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


def switches_above(function: PciFunction, functions: Mapping[str, PciFunction]) -> tuple[str, ...]:
    """The switches NCCL sees above a function, nearest first, by the BDF of their upstream ports.

    NCCL walks up in steps of two path elements, which leaves of each switch its upstream port only; what is
    reached with no element left is the CPU.
    """
    above: list[str] = []
    place = len(function.chain) - 1
    while place > 1:
        place -= 2
        above.append(function.chain[place])
    return tuple(_flattened(above, functions))


def _flattened(above: list[str], functions: Mapping[str, PciFunction]) -> list[str]:
    """A Broadcom sub-switch is taken as one with the switch above it: together they carry full bandwidth."""
    kept: list[str] = []
    for number, bdf in enumerate(above):
        upper = functions.get(above[number + 1]) if number + 1 < len(above) else None
        kind = broadcom_generation(functions.get(bdf), 1)
        if kind is None or kind != broadcom_generation(upper, 0):
            kept.append(bdf)
    return kept


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


def cpu_of(function: PciFunction, functions: Mapping[str, PciFunction]) -> int:
    """The NUMA node NCCL hangs a function below: that of the last PCI device before the root."""
    above = switches_above(function, functions)
    top = functions.get(above[-1], function) if above else function
    return UNKNOWN_NUMA if isinstance(top.numa_node, Unknown) else top.numa_node


def pci_path(a: PciFunction, b: PciFunction, functions: Mapping[str, PciFunction]) -> Nccl:
    """PIX below one switch, PXB below one root, PHB by one NUMA node, SYS by two (paths.cc:84-94)."""
    above_a, above_b = switches_above(a, functions), switches_above(b, functions)
    if a.bdf[:-1] == b.bdf[:-1]:
        return Nccl.PIX
    common = next((bdf for bdf in above_a if bdf in above_b), None)
    if common is not None:
        bridges = above_a.index(common) + above_b.index(common) + 1
        return Nccl.PIX if bridges == 1 else Nccl.PXB
    return Nccl.PHB if cpu_of(a, functions) == cpu_of(b, functions) else Nccl.SYS
