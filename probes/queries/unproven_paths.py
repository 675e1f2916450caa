"""Paths between GPUs and NICs on which a transfer was seen to succeed with wrong data.

Sources: ai-dynamo/dynamo issue 12463 (a virtual machine whose GPU and NIC look adjacent);
NVIDIA/open-gpu-kernel-modules issue 1324 (DMA-BUF under an IOMMU that translates).
"""

from __future__ import annotations

from probes.base.unknown import Unknown, known, map_known
from probes.facts.gpudirect import GdrPath
from probes.queries.iommu_groups import translated_types
from probes.queries.pcie_paths import config_of, gpus_and_nics, is_grace, is_guest, near_paths, nic_ends
from probes.snapshot.examination import Examination

IN_GUEST = "in this virtual machine, data may be wrong although the transfer succeeds"
BEHIND_IOMMU = "behind a translating IOMMU, writes by DMA-BUF may be lost without an error"
_MELLANOX = 0x15B3


def unproven_pairs(examination: Examination) -> dict[tuple[str, str], str]:
    """Return why data may be wrong, by (GPU, NIC) as the topology names them."""
    in_guest = is_guest(examination)
    if in_guest is True:
        return dict.fromkeys(guest_pairs(examination), IN_GUEST)
    is_host = in_guest is False and not is_grace(examination)
    if not is_host or examination.usability.path is not GdrPath.DMABUF:
        return {}
    types = translated_types(examination)
    translated = {bdf for bdf, kind in types.items() if not isinstance(kind, Unknown)}
    ends, topology = nic_ends(examination), examination.topology
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
    here, ends = gpus_and_nics(examination), nic_ends(examination)
    return [
        (path.a, path.b)
        for path in near_paths(examination)
        if (nic := ends.get(path.b, "")) in here
        and known(here[nic].vendor_id, _MELLANOX) == _MELLANOX
        and not _has_ats(examination, nic)
    ]


def _has_ats(examination: Examination, bdf: str) -> bool:
    return known(map_known(config_of(examination, bdf), lambda space: space.ats_enabled), False)
