"""nvidia-smi's word for what lies between two PCI functions."""

from __future__ import annotations

from enum import Enum

from probes.base.unknown import Maybe, Reason, Unknown
from probes.topology.hops import Branch
from probes.topology.parts import Parts


class Smi(Enum):
    """nvidia-smi's words for a path (`nvidia-smi topo -m` legend), nearest first."""

    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"


def smi_path(parts: Parts, up: Branch, down: Branch) -> Maybe[Smi]:
    """Return the word for two functions, by the legend of `topo -m` (nvidia-smi's source is closed).

    Unknown if the route crosses from one host bridge to another and a NUMA node is missing.
    """
    a, b = up.parts[-1], down.parts[-1]
    if _device(a) == _device(b):
        return Smi.PIX
    common = up.common(down)
    if common > 1:
        # Below the last common port, a downstream port and the device on either side are one switch.
        longest = max(len(up.parts), len(down.parts)) - common
        return Smi.PIX if longest <= 2 else Smi.PXB
    if common:
        return Smi.PHB
    numa = []
    for bdf in (a, b):
        facts = parts.nodes[bdf]
        if isinstance(facts["numa_node"], Unknown):
            detail = f"NODE or SYS: the NUMA node of {bdf} is unknown"
            return Unknown(Reason.NOT_THERE, f"{facts['sysfs_path']}/numa_node", detail)
        numa.append(facts["numa_node"])
    return Smi.NODE if numa[0] == numa[1] else Smi.SYS


def _device(bdf: str) -> str:
    """Return the BDF without its function: the functions of one device have it in common."""
    return bdf.rpartition(".")[0]
