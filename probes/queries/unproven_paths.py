"""Paths between GPUs and NICs on which GPU memory was seen to register and data to be wrong or lost.

Sources: ai-dynamo/dynamo issue 12463 (a virtual machine whose GPU and NIC look adjacent);
NVIDIA/open-gpu-kernel-modules issue 1324 (an IOMMU that translates);
ofiwg/libfabric pull request 12864 (a DMA-BUF has one path, by PCIe or by C2C) and src/hmem_cuda.c,
cuda_get_dmabuf_fd (libfabric asks for PCIe first, whichever NIC it is for).
"""

from __future__ import annotations

from probes.base.unknown import Unknown, known, map_known
from probes.facts.gpudirect import GdrPath
from probes.facts.pci.nic_families import CONNECTX, EFA
from probes.queries.modules import nics_of
from probes.queries.pcie_paths import (
    config_of,
    gpus_and_nics,
    is_grace,
    is_guest,
    may_lose_writes,
    near_paths,
    translated_types,
)
from probes.snapshot.examination import Examination

IN_GUEST = "in this virtual machine, data may be wrong although the transfer succeeds"
BEHIND_IOMMU = "behind a translating IOMMU, from Linux 6.12 on, writes may be lost without an error"
OVER_C2C = (
    "this EFA reaches the GPU over C2C, but libfabric exports GPU memory for PCIe first, so transfers may "
    "fail although it registers"
)


def unproven_pairs(examination: Examination) -> dict[tuple[str, str], str]:
    """Return why data may be wrong, by (GPU, NIC) as the topology names them."""
    return {**dict.fromkeys(_over_c2c(examination), OVER_C2C), **_unproven_by_platform(examination)}


def _over_c2c(examination: Examination) -> list[tuple[str, str]]:
    """Return the EFAs that only the CPU connects with a GPU with C2C links and other EFAs at its switch.

    A GPU without an EFA at its switch has none: how libfabric reaches such a GPU is not known.
    """
    facts, efas = examination.node.gpus, known(nics_of(examination, EFA), ())
    if isinstance(facts, Unknown) or not efas or examination.usability.path is not GdrPath.DMABUF:
        return []
    by_c2c = {gpu.bdf for gpu in facts.gpus if known(gpu.c2c_links, 0)}
    ends = {nic: bdf for nic, bdf in examination.topology.nic_ends.items() if bdf in efas}
    near = [(path.a, path.b) for path in near_paths(examination) if path.a in by_c2c and path.b in ends]
    return [
        (gpu, nic) for gpu in dict.fromkeys(gpu for gpu, _ in near) for nic in ends if (gpu, nic) not in near
    ]


def _unproven_by_platform(examination: Examination) -> dict[tuple[str, str], str]:
    """Return the pairs of a virtual machine, and those behind an IOMMU that translates."""
    in_guest = is_guest(examination)
    if in_guest is True:
        return dict.fromkeys(guest_pairs(examination), IN_GUEST)
    is_host = in_guest is False and not is_grace(examination)
    if not is_host or not may_lose_writes(examination):
        return {}
    translated = {bdf for bdf, kind in translated_types(examination).items() if not isinstance(kind, Unknown)}
    topology = examination.topology
    ends = topology.nic_ends
    return {
        (gpu.id, nic.id): BEHIND_IOMMU
        for gpu in topology.gpus
        for nic in (topology.nics if translated else ())
        if nic.id in ends and translated & {gpu.id, ends[nic.id]}
    }


def guest_pairs(examination: Examination) -> list[tuple[str, str]]:
    """Return GPUs and ConnectX NICs below one switch, without ATS and without a topology file of a provider.

    Whether this is a virtual machine is not asked here.
    """
    if examination.topology.file is not None:
        return []
    here, ends = gpus_and_nics(examination), examination.topology.nic_ends
    return [
        (path.a, path.b)
        for path in near_paths(examination)
        if (nic := ends.get(path.b, "")) in here
        and known(here[nic].vendor_id, CONNECTX.vendor) == CONNECTX.vendor
        and not known(map_known(config_of(examination, nic), lambda space: space.ats_enabled), False)
    ]
