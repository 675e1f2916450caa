"""Whether the IOMMU translates the DMA of GPUs and NICs, from the types of their groups."""

from __future__ import annotations

from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.pci.functions import PciFunction
from probes.queries.pcie_paths import gpus_and_nics, is_arm64
from probes.snapshot.examination import Examination

GROUPS = "/sys/kernel/iommu_groups"


def translated_types(examination: Examination) -> dict[str, Maybe[str]]:
    """Return the types of the groups of GPUs and NICs that are translated (DMA or DMA-FQ) or unknown, by BDF.

    Identity (iommu=pt) is left out. In a virtual machine, these are the guest's own groups.
    """
    types = {
        bdf: type_of_group(examination, function) for bdf, function in gpus_and_nics(examination).items()
    }
    return {bdf: kind for bdf, kind in types.items() if isinstance(kind, Unknown) or kind.startswith("DMA")}


def may_lose_writes(examination: Examination) -> bool:
    """Return whether the kernel is one behind whose translating IOMMU writes to GPU memory may be lost.

    The driver (nv-dma.c, nv_dma_use_map_resource, of 535 to 595.45.04) hands out the raw bus address of GPU
    memory, whichever the path, where get_dma_ops() is NULL and there is no dma_is_direct(). Linux 6.12
    ("dma-mapping: direct calls for dma-iommu") made it NULL behind an IOMMU. This was read, not tried. The
    one report is open-gpu-kernel-modules issue 1324 (595.84, Linux 7.0). A distribution may have the change
    in an older kernel.
    """
    version = map_known(examination.node.kernel, lambda kernel: kernel.version)
    return known(version, (0, 0)) >= (6, 12)


def type_of_group(examination: Examination, function: PciFunction) -> Maybe[str]:
    """Return the type of a group, from the command line if sysfs has none; "" where there is no group."""
    group, kind = function.iommu_group, function.iommu_type
    if isinstance(group, Unknown):
        return "" if group.reason is Reason.NOT_THERE else group
    if not isinstance(kind, Unknown) or kind.reason is not Reason.NOT_THERE:
        return kind
    kernel = examination.node.kernel
    cmdline = known(map_known(kernel, lambda kernel: kernel.cmdline), "")
    if any(_is_direct(word, is_arm64(examination)) for word in cmdline.split()):
        return "identity"
    detail = "needs Linux 5.11, which shows a group's type"
    return Unknown(Reason.NOT_THERE, f"{GROUPS}/{group}/type", detail)


def _is_direct(word: str, arm: bool) -> bool:
    """Return whether a kernel option makes the IOMMU pass DMA through; iommu=pt exists on x86 only."""
    name, _, value = word.partition("=")
    if name == "iommu":
        return not arm and "pt" in value.split(",")
    return name == "iommu.passthrough" and value in ("1", "on", "y", "Y")
