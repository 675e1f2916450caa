"""Clearing ACS redirects of the switch ports between GPUs and NICs, until the next reboot."""

from __future__ import annotations

from collections.abc import Mapping

from probes.checks.acs_redirects import REDIRECTS, is_translated, not_to_be_judged, redirects_of
from probes.checks.pcie_paths import for_guests, is_guest, near_paths, reason_of
from probes.examination import Examination
from probes.pci_capabilities import Acs
from probes.plan import Plan, Step, instruction
from probes.unknown import Unknown

_DRAIN = "DMA of running jobs is routed anew: drain the node first"


def redirects_off(examination: Examination) -> Plan | str:
    """Clears the redirects, but for nodes on which they have to stay."""
    pci = examination.node.pci
    if isinstance(pci, Unknown):
        return f"the PCI functions could not be read: {pci}"
    aside = not_to_be_judged(examination)
    if aside is not None:
        return aside.value
    found = redirects_of(examination)
    if not found.ports:
        if found.unknown:
            return reason_of(found.unknown[0])
        return f"no redirect on the {found.looked_at} switch ports between GPUs and NICs"
    if any(is_translated(examination, path) for path in near_paths(examination)):
        return "the IOMMU translates, so clearing ACS alone does not help: fix iommu-translated first"
    guest, guests = is_guest(examination), for_guests(examination)
    if isinstance(guest, Unknown):
        return f"whether this is a virtual machine, where ACS has to be on, is unknown: {guest}"
    if guests:
        return f"this host hands {guests[0]} to a virtual machine, and redirects keep such devices apart"
    return clear(found.ports)


def clear(ports: Mapping[str, Acs]) -> Plan:
    """Clears the redirecting bits of each port, and leaves the others."""
    steps = [
        Step(
            f"clears the redirects of {bridge}, and no other bit",
            ("setpci", "-s", bridge, f"ECAP_ACS+6.w=0000:{REDIRECTS:04x}"),
            undo=("setpci", "-s", bridge, f"ECAP_ACS+6.w={acs.control & REDIRECTS:04x}:{REDIRECTS:04x}"),
        )
        for bridge, acs in ports.items()
    ]
    last = instruction(
        "a reboot brings the redirects back: turn ACS off in the BIOS, or add to the kernel command line "
        f"pci=disable_acs_redir={';'.join(ports)}"
    )
    return Plan(
        "Clear ACS redirects between GPUs and NICs",
        (*steps, last),
        disturbs=_DRAIN,
        note="not on a host that hands devices to virtual machines",
    )
