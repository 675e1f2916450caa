"""Clear ACS redirects of the switch ports between GPUs and NICs, until the next reboot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from probes.base.plan import NothingToDo, Plan, Step, instruction
from probes.base.text import plural
from probes.base.unknown import Unknown
from probes.facts.pci.config_space import Acs
from probes.plans.common import REBOOT_ENDS_JOBS
from probes.plans.iommu import pass_through_option
from probes.plans.register_writes import why_no_setpci
from probes.queries.acs_redirects import REDIRECTS, acs_exemption, redirects_of, translates
from probes.queries.pcie_paths import is_guest, passed_to_guests, reason_of
from probes.snapshot.examination import Examination

_DRAIN = "DMA of running jobs, because its path changes (drain the node first)"
_TITLE = "Clear ACS redirects between GPUs and NICs"
CHECK_CMDLINE = "After the reboot, check that /proc/cmdline contains the whole list of ports."


def redirects_off(examination: Examination) -> Plan | str:
    """Clear the redirects, except on nodes that need them."""
    pci = examination.node.pci
    if isinstance(pci, Unknown):
        return f"the PCI functions could not be read: {pci}"
    exempt = acs_exemption(examination)
    if exempt is not None:
        return exempt.value
    found = redirects_of(examination)
    if not found.ports:
        if found.unknowns:
            return reason_of(found.unknowns[0])
        ports = plural(found.checked, "switch port")
        return NothingToDo(f"none of the {ports} between GPUs and NICs has a redirect enabled")
    if translates(examination):
        option = pass_through_option(examination)
        return f"the IOMMU translates DMA, so clearing ACS alone does not help; boot with {option} first"
    guest, guests = is_guest(examination), passed_to_guests(examination)
    if isinstance(guest, Unknown):
        return f"it is unknown whether this is a virtual machine, where ACS must stay on: {guest}"
    if guests:
        return f"this host passes {guests[0]} through to a virtual machine, and ACS isolates such devices"
    return why_no_setpci(examination) or clear(found.ports)


def fix_redirects(examination: Examination, ports: Mapping[str, Acs]) -> Plan:
    """Return the plan that clears these redirects; with kernel lockdown only the boot option remains."""
    locked = why_no_setpci(examination)
    if not locked:
        return clear(ports)
    return Plan(
        _TITLE,
        (instruction(locked), *_lasting(ports)),
        needs_reboot=True,
        disturbs=REBOOT_ENDS_JOBS,
    )


def clear(ports: Mapping[str, Acs]) -> Plan:
    """Clear the redirect bits of each port, and no other bit."""
    steps = [
        Step(
            f"Clear only the redirect bits of {bridge}",
            ("setpci", "-s", bridge, f"ECAP_ACS+6.w=0000:{REDIRECTS:04x}"),
            undo=("setpci", "-s", bridge, f"ECAP_ACS+6.w={acs.control & REDIRECTS:04x}:{REDIRECTS:04x}"),
            group="switch ports",
        )
        for bridge, acs in ports.items()
    ]
    return Plan(
        _TITLE,
        (*steps, *_lasting(ports)),
        disturbs=_DRAIN,
        note="Do not use this on hosts that pass devices through to virtual machines.",
    )


def redirects_option(ports: Iterable[str]) -> str:
    """Return the kernel option that clears the redirects of these ports at boot, quoted for grub.cfg.

    An unquoted `;` ends the command in grub.cfg, and the options after it are lost.
    """
    return f'pci=disable_acs_redir="{";".join(ports)}"'


def boot_option(ports: Iterable[str]) -> str:
    """Return the same option as it is written inside the quotes of GRUB_CMDLINE_LINUX."""
    return redirects_option(ports).replace('"', r"\"")


def _lasting(ports: Iterable[str]) -> tuple[Step, ...]:
    return (
        instruction(
            "A reboot enables the redirects again. Turn ACS off in the BIOS, or add this inside the quotes "
            "of GRUB_CMDLINE_LINUX in /etc/default/grub. Keep the inner quotes: grub ends the command at an "
            "unquoted semicolon.",
            to_copy=boot_option(ports),
        ),
        instruction(CHECK_CMDLINE),
    )
