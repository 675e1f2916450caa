"""ACS redirects between GPUs and NICs below one switch: which ports redirect, and where that is correct."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.frozen import frozen
from probes.base.unknown import Unknown, known
from probes.facts.pci.config_space import Acs
from probes.facts.pci.functions import DEVICES
from probes.facts.pci.rdma_topo import ARGV, is_dma_function
from probes.queries.finding import Evidence
from probes.queries.pcie_paths import (
    acs_of,
    config_of,
    functions_of,
    is_grace,
    is_guest,
    near_paths,
    nic_ends,
    turning_ports,
)
from probes.snapshot.examination import Examination
from probes.topology.paths import Path

# PCI_ACS_RR and PCI_ACS_CR. Upstream forwarding (UF) redirects nothing by itself: it only sends up what would
# leave through the port that it came in by.
REDIRECTS = 0x0C


@frozen
class Redirects:
    """The switch ports where paths between GPUs and near NICs turn."""

    ports: dict[str, Acs]  # the ports that redirect, by BDF
    unknowns: tuple[Unknown, ...]  # why others could not be read
    checked: int  # number of ports


def redirects(acs: Acs) -> bool:
    """Return whether a port sends requests or completions between peers up to the CPU."""
    return bool(acs.control & REDIRECTS)


def redirects_of(examination: Examination) -> Redirects:
    """Return the ports that redirect, except those whose NICs bypass the redirect with ATS."""
    ports: dict[str, Acs] = {}
    unknowns: list[Unknown] = []
    nics = nics_by_bridge(examination, near_paths(examination))
    for bridge, nics_below in nics.items():
        acs = acs_of(examination, bridge)
        if isinstance(acs, Unknown):
            unknowns.append(acs)
        elif acs is not None and redirects(acs) and not _bypassed_with_ats(examination, acs, nics_below):
            ports[bridge] = acs
    return Redirects(ports, tuple(unknowns), len(nics))


def acs_exemption(examination: Examination) -> Evidence | None:
    """Return why redirects are correct or irrelevant on this node; None: they are to be judged."""
    if any(map(is_dma_function, functions_of(examination).values())):
        return Evidence(" ".join(ARGV), "a Direct NIC platform needs redirects: see acs-direct-nic")
    if not near_paths(examination):
        return Evidence(DEVICES, "no GPU and NIC share a PCIe switch")
    if is_grace(examination):
        return Evidence(DEVICES, "on Grace and Vera, the kernel's ACS settings are correct")
    guest = is_guest(examination)
    if not isinstance(guest, Unknown) and guest:
        return Evidence("/sys/class/dmi/id", "in a virtual machine, the hypervisor controls ACS")
    return None


def nics_by_bridge(examination: Examination, paths: Sequence[Path]) -> dict[str, list[str]]:
    """Return the switch ports where a path turns, each with the NICs (BDFs) of those paths."""
    bdfs = nic_ends(examination)
    nics_below: dict[str, list[str]] = {}
    for path in paths:
        for bridge in turning_ports(examination, path):
            nics = nics_below.setdefault(bridge, [])
            if bdfs[path.b] not in nics:
                nics.append(bdfs[path.b])
    return nics_below


def translates(examination: Examination) -> bool:
    """Return whether the IOMMU translates DMA between any GPU and a near NIC."""
    return any(_is_translated(examination, path) for path in near_paths(examination))


def _is_translated(examination: Examination, path: Path) -> bool:
    """Return whether the IOMMU translates the DMA of this path's GPU or NIC."""
    functions = functions_of(examination)
    bdfs = nic_ends(examination)
    both = (functions.get(path.a), functions.get(bdfs[path.b]))
    return any(function and known(function.iommu_type, "").startswith("DMA") for function in both)


def detours(examination: Examination) -> frozenset[tuple[str, str]]:
    """Return (GPU id, NIC id) of the pairs below one switch whose traffic goes up to the root complex.

    ACS redirects send it there, and so does a translating IOMMU: an address that needs translation is in no
    window of the switch. Empty on Grace and Vera, on Direct NIC platforms and in virtual machines.
    """
    if acs_exemption(examination) is not None:
        return frozenset()
    bdfs = nic_ends(examination)
    return frozenset(
        (path.a, path.b)
        for path in near_paths(examination)
        if _is_translated(examination, path)
        or any(
            _redirects_nic(examination, bridge, bdfs[path.b]) for bridge in turning_ports(examination, path)
        )
    )


def detour_marks(examination: Examination) -> tuple[str, ...]:
    """Return the ids to mark on these detours: switches (upstream ports), GPUs and NICs."""
    functions, pairs = functions_of(examination), detours(examination)
    marks: list[str] = []
    for path in near_paths(examination):
        if (path.a, path.b) in pairs:
            ports = turning_ports(examination, path)
            chain = functions[path.a].chain
            place = chain.index(ports[0]) if ports else 0
            marks.extend((*chain[max(place - 1, 0) : place], path.a, path.b))
    return tuple(dict.fromkeys(marks))


def _redirects_nic(examination: Examination, bridge: str, nic: str) -> bool:
    acs = acs_of(examination, bridge)
    if acs is None or isinstance(acs, Unknown):
        return False
    return redirects(acs) and not _bypassed_with_ats(examination, acs, [nic])


def _bypassed_with_ats(examination: Examination, acs: Acs, nics: list[str]) -> bool:
    """Return whether these NICs bypass redirects: they use ATS, and DirectTrans passes their requests."""
    if not acs.on.direct_translated:
        return False
    spaces = [config_of(examination, nic) for nic in nics]
    return bool(spaces) and all(
        not isinstance(space, Unknown) and known(space.ats_enabled, False) for space in spaces
    )
