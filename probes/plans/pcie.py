"""PCI Express settings: ACS redirects, the IOMMU, MaxReadReq (MRRS) and other bits of Device Control."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from probes.base.plan import NothingToDo, Plan, Step, instruction, make_plan
from probes.base.text import plural
from probes.base.unknown import Unknown
from probes.facts.pci.config_space import Acs
from probes.plans.boot import command_line_steps
from probes.plans.common import reboot_plan, reboot_step
from probes.plans.ports import READS_IN_FLIGHT, firmware_steps
from probes.queries.pcie_paths import (
    REDIRECTS,
    acs_exemption,
    is_arm64,
    is_guest,
    nic_registers,
    passed_to_guests,
    reason_of,
    redirects_of,
    translates,
)
from probes.snapshot.examination import Examination

_DRAIN = "DMA of running jobs, because its path changes (drain the node first)"
_TITLE = "Clear ACS redirects between GPUs and NICs"
CHECK_CMDLINE = instruction(
    "After the reboot, check that /proc/cmdline contains the whole list of ports.", needs_root=False
)
USUAL_READ_BYTES = 4096
_FIELD = 0x7000  # PCI_EXP_DEVCTL_READRQ, include/uapi/linux/pci_regs.h
DRAIN = "running jobs that use these NICs (drain the node first)"
NOT_LASTING = (
    "A reboot or a NIC reset restores the old value. To keep the new one, set it in the BIOS or with "
    "a systemd unit."
)
_LOCKED = ("integrity", "confidentiality")


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
        return f"cannot tell whether this is a virtual machine, where ACS must stay on: {guest}"
    if guests:
        return f"this host passes {guests[0]} through to a virtual machine, and ACS isolates such devices"
    return why_no_setpci(examination) or clear(examination, found.ports)


def fix_redirects(examination: Examination, ports: Mapping[str, Acs]) -> Plan:
    """Return the plan that clears these redirects; with kernel lockdown only the boot option remains."""
    locked = why_no_setpci(examination)
    if not locked:
        return clear(examination, ports)
    return reboot_plan(_TITLE, locked, *_lasting(examination, ports))


def ats_steps(nics: Sequence[str], enable: bool) -> list[Step]:
    """Return the steps that switch ATS in the firmware of NICs."""
    verb, value, before = ("Enable", "true", "false") if enable else ("Disable", "false", "true")
    return [
        Step(
            f"{verb} ATS in the firmware of {nic}",
            ("mlxconfig", "-d", nic, "set", f"ATS_ENABLED={value}"),
            undo=("mlxconfig", "-d", nic, "set", f"ATS_ENABLED={before}"),
        )
        for nic in nics
    ]


def clear(examination: Examination, ports: Mapping[str, Acs]) -> Plan:
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
    return make_plan(
        _TITLE,
        *steps,
        *_lasting(examination, ports),
        disturbs=_DRAIN,
        note="Instead of the kernel option, ACS can be turned off in the BIOS. Do neither on hosts that pass "
        "devices through to virtual machines.",
    )


def redirects_option(ports: Iterable[str]) -> str:
    """Return the kernel option that clears the redirects of these ports at boot, quoted for grub.cfg.

    An unquoted `;` ends the command in grub.cfg, and the options after it are lost.
    """
    return f'pci=disable_acs_redir="{";".join(ports)}"'


def _lasting(examination: Examination, ports: Iterable[str]) -> tuple[Step, ...]:
    """Clear the redirects at every boot, too: a reboot enables them again."""
    return (*command_line_steps(examination, "acs", redirects_option(ports)), CHECK_CMDLINE)


def pass_through_option(examination: Examination) -> str:
    """Return the kernel option of this architecture (kernel-parameters.txt): iommu=pt is x86 only."""
    return "iommu.passthrough=1" if is_arm64(examination) else "iommu=pt"


def pass_through(examination: Examination) -> Plan:
    """Set the IOMMU to passthrough, and clear the ACS redirects that come with it, at the next boot."""
    keep = "" if is_arm64(examination) else " Keep intel_iommu=on if virtual functions are used."
    ports = (
        {} if acs_exemption(examination) or passed_to_guests(examination) else redirects_of(examination).ports
    )
    steps = (
        *command_line_steps(examination, "iommu", pass_through_option(examination)),
        *(command_line_steps(examination, "acs", redirects_option(ports)) if ports else ()),
    )
    return reboot_plan(
        "Set the IOMMU to passthrough",
        *(step for place, step in enumerate(steps, 1) if step not in steps[place:]),
        instruction("Before rebooting, see what will change: gdrtop forecast", needs_root=False),
        reboot_step("Reboot; gdrtop then reads /proc/cmdline and the IOMMU groups again"),
        *((CHECK_CMDLINE,) if ports else ()),
        note="DMA of devices passed through to virtual machines is still translated." + keep,
    )


def why_no_setpci(examination: Examination) -> str:
    """Return why setpci cannot write a register here, or "".

    Kernel lockdown refuses the write (LOCKDOWN_PCI_ACCESS, drivers/pci/pci-sysfs.c), and setpci exits with 0.
    """
    kernel = examination.node.kernel
    mode = kernel if isinstance(kernel, Unknown) else kernel.lockdown
    if mode not in _LOCKED:
        return ""
    return f"kernel lockdown is on ({mode}), so setpci cannot write PCI registers; use the BIOS instead"


def raise_reads(examination: Examination) -> Plan | str:
    """Raise MaxReadReq to 4096 bytes on each NIC that has less."""
    if isinstance(examination.node.pci, Unknown):
        return f"the PCI functions could not be read: {examination.node.pci}"
    low: dict[str, int] = {}
    unknown: list[Unknown] = []
    nics = nic_registers(examination)
    for bdf, express in nics.items():
        size = express if isinstance(express, Unknown) else express.max_read_request_bytes
        if isinstance(size, Unknown):
            unknown.append(size)
        elif size < USUAL_READ_BYTES:
            low[bdf] = size
    if low:
        return why_no_setpci(examination) or raising(examination, low)
    if unknown:
        return reason_of(unknown[0])
    if not nics:
        return "this node does not control any NIC's settings"
    return NothingToDo(f"already {USUAL_READ_BYTES} bytes or more on all {len(nics)} NICs")


def raising(examination: Examination, low: Mapping[str, int]) -> Plan:
    """Raise the NICs of these BDFs, with their sizes now."""
    steps = [
        set_bits(
            bdf,
            f"Set MaxReadReq of {bdf} from {size} to {USUAL_READ_BYTES} bytes",
            _code(USUAL_READ_BYTES) << 12,
            _code(size) << 12,
            _FIELD,
        )
        for bdf, size in low.items()
    ]
    looks = firmware_steps(examination, low, READS_IN_FLIGHT)
    return make_plan("Raise MaxReadReq", *steps, NOT_LASTING, *looks, disturbs=DRAIN)


def _code(size_bytes: int) -> int:
    """Return the field's value: the size is 128 << value."""
    return (size_bytes // 128).bit_length() - 1


def set_bits(bdf: str, why: str, value: int, old: int, mask: int) -> Step:
    """Set the bits of `mask`, and no others, until the next reboot (setpci(8): VALUE:MASK)."""
    return Step(
        why,
        ("setpci", "-s", bdf, f"CAP_EXP+8.w={value:04x}:{mask:04x}"),
        undo=("setpci", "-s", bdf, f"CAP_EXP+8.w={old:04x}:{mask:04x}"),
        group="PCI functions",
    )
