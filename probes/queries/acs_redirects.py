"""ACS redirects between GPUs and NICs below one switch: which ports redirect, and where that is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from probes.base.unknown import Unknown, known
from probes.facts.pci.capabilities import Acs
from probes.facts.pci.rdma_topo import ARGV, is_dma_function
from probes.queries.finding import Evidence
from probes.queries.pcie_paths import (
    DEVICES,
    acs_of,
    config_of,
    functions_of,
    is_grace,
    is_guest,
    near_paths,
    turning_ports,
)
from probes.snapshot.examination import Examination
from probes.topology.paths import Path

# PCI_ACS_RR and PCI_ACS_CR. Upstream forwarding (UF) redirects nothing by itself: it sends up what would go
# back out of the port that it came in by.
REDIRECTS = 0x0C


@dataclass(frozen=True)
class Redirects:
    """The switch ports where paths between GPUs and near NICs turn."""

    ports: dict[str, Acs]  # those that redirect, by BDF
    unknowns: tuple[Unknown, ...]  # why others could not be read
    looked_at: int


def redirects(acs: Acs) -> bool:
    """Whether a port sends requests or completions between peers up to the CPU."""
    return bool(acs.control & REDIRECTS)


def redirects_of(examination: Examination) -> Redirects:
    """The ports that redirect, but for those whose NICs go past by what they have translated themselves."""
    ports: dict[str, Acs] = {}
    unknowns: list[Unknown] = []
    nics = nics_by_bridge(examination, near_paths(examination))
    for bridge, behind in nics.items():
        acs = acs_of(examination, bridge)
        if isinstance(acs, Unknown):
            unknowns.append(acs)
        elif acs is not None and redirects(acs) and not _goes_past(examination, acs, behind):
            ports[bridge] = acs
    return Redirects(ports, tuple(unknowns), len(nics))


def acs_exemption(examination: Examination) -> Evidence | None:
    """Where redirects are as they should be, or are not this node's matter; None: nowhere of these."""
    if any(map(is_dma_function, functions_of(examination).values())):
        return Evidence(" ".join(ARGV), "a Direct NIC platform needs redirects: see acs-direct-nic")
    if not near_paths(examination):
        return Evidence(DEVICES, "no GPU and NIC below one PCIe switch")
    if is_grace(examination):
        return Evidence(DEVICES, "on Grace the kernel's ACS settings are right")
    guest = is_guest(examination)
    if not isinstance(guest, Unknown) and guest:
        return Evidence("/sys/class/dmi/id", "a virtual machine: ACS is the hypervisor's matter")
    return None


def nics_by_bridge(examination: Examination, paths: Sequence[Path]) -> dict[str, list[str]]:
    """Each switch port where a path turns, with the NICs (BDFs) of those paths."""
    bdfs = {nic.id: known(nic.bdf, "") for nic in examination.topology.nics}
    found_here: dict[str, list[str]] = {}
    for path in paths:
        for bridge in turning_ports(examination, path):
            nics = found_here.setdefault(bridge, [])
            if bdfs[path.b] not in nics:
                nics.append(bdfs[path.b])
    return found_here


def is_translated(examination: Examination, path: Path) -> bool:
    """Whether the IOMMU translates the DMA of this path's GPU or NIC."""
    functions = functions_of(examination)
    bdfs = {nic.id: known(nic.bdf, "") for nic in examination.topology.nics}
    both = (functions.get(path.a), functions.get(bdfs[path.b]))
    return any(one is not None and known(one.iommu_type, "").startswith("DMA") for one in both)


def detours(examination: Examination) -> frozenset[tuple[str, str]]:
    """Return (GPU id, NIC id) of the pairs below one switch whose traffic goes up to the root complex.

    ACS redirects send it there, and so does a translating IOMMU: an address that it has to translate lies in
    no window of the switch. Empty on Grace, on Direct NIC platforms and in virtual machines.
    """
    if acs_exemption(examination) is not None:
        return frozenset()
    bdfs = {nic.id: known(nic.bdf, "") for nic in examination.topology.nics}
    return frozenset(
        (path.a, path.b)
        for path in near_paths(examination)
        if is_translated(examination, path)
        or any(
            _redirects_nic(examination, bridge, bdfs[path.b]) for bridge in turning_ports(examination, path)
        )
    )


def detour_marks(examination: Examination) -> tuple[str, ...]:
    """Return what a drawing marks on these detours: switches (upstream ports), GPUs and NICs, by id."""
    functions, bent = functions_of(examination), detours(examination)
    marks: list[str] = []
    for path in near_paths(examination):
        if (path.a, path.b) in bent:
            ports = turning_ports(examination, path)
            chain = functions[path.a].chain
            place = chain.index(ports[0]) if ports else 0
            marks.extend((*chain[max(place - 1, 0) : place], path.a, path.b))
    return tuple(dict.fromkeys(marks))


def _redirects_nic(examination: Examination, bridge: str, nic: str) -> bool:
    acs = acs_of(examination, bridge)
    if acs is None or isinstance(acs, Unknown):
        return False
    return redirects(acs) and not _goes_past(examination, acs, [nic])


def _goes_past(examination: Examination, acs: Acs, nics: list[str]) -> bool:
    """Whether redirects do not touch these NICs: they translate by ATS, and DirectTrans lets that by."""
    if not acs.on.direct_translated:
        return False
    spaces = [config_of(examination, nic) for nic in nics]
    return bool(spaces) and all(
        not isinstance(one, Unknown) and known(one.ats_enabled, False) for one in spaces
    )
