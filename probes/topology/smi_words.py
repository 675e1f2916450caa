"""nvidia-smi's word for what lies between two PCI functions."""

from __future__ import annotations

from enum import Enum

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.pci.functions import PciFunction


class Smi(Enum):
    """nvidia-smi's words for a path (`nvidia-smi topo -m` legend), nearest first."""

    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"


def shared(a: PciFunction, b: PciFunction) -> int:
    """How many elements the chains of two functions of one host bridge begin with in common."""
    count = 0
    for one, other in zip(a.chain, b.chain, strict=False):
        if one != other:
            break
        count += 1
    return count


def same_device(a: PciFunction, b: PciFunction) -> bool:
    """Whether two functions are of one device: BDFs that differ in the function only."""
    return a.bdf.rpartition(".")[0] == b.bdf.rpartition(".")[0]


def smi_path(a: PciFunction, b: PciFunction) -> Maybe[Smi]:
    """The word, from where the functions hang (nvidia-smi's own source is closed; legend of `topo -m`).

    Unknown where they have no host bridge in common and one of them no NUMA node, and where the place of
    one in the tree is not known.
    """
    if a.root and a.root == b.root:
        common = shared(a, b)
        if same_device(a, b):
            return Smi.PIX
        if common == 0:
            return Smi.PHB
        # Below the last bridge in common: a downstream port and the device on either side is one switch.
        if len(a.chain) - common <= 2 and len(b.chain) - common <= 2:
            return Smi.PIX
        return Smi.PXB
    for end in (a, b):
        if not end.root:
            return Unknown(Reason.MALFORMED, end.sysfs_path, f"no host bridge in the path of {end.bdf}")
    for end in (a, b):
        if isinstance(end.numa_node, Unknown):
            return Unknown(
                Reason.NOT_THERE,
                f"{end.sysfs_path}/numa_node",
                f"NODE or SYS: the NUMA node of {end.bdf} is unknown",
            )
    return Smi.NODE if a.numa_node == b.numa_node else Smi.SYS
