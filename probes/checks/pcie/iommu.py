"""The IOMMU between NIC and GPU memory, ATS of NICs, and paths that a virtual machine does not show."""

from __future__ import annotations

from probes.base.evidence import LIKE_THESE, Evidence, Severity, first_distinct
from probes.base.plan import Plan
from probes.base.text import join_limited, plural
from probes.base.unknown import Reason, Unknown, known, map_known
from probes.facts.kernel.log import LogKind
from probes.facts.pci.config_space import Acs
from probes.facts.pci.functions import DEVICES, PciKind
from probes.facts.pci.nic_families import CONNECTX
from probes.plans.boot import driver_option_plan
from probes.plans.common import reboot_plan
from probes.plans.pcie import ats_steps, pass_through
from probes.queries.finding import KERNEL_LOG, Area, Outcome, Scope, end_with, found, need, passed
from probes.queries.kernel_log import bdfs_in, coverage, messages_about
from probes.queries.modules import impossible_by_design
from probes.queries.pcie_paths import (
    GROUPS,
    NO_GPU_OR_NIC,
    Tally,
    acs_of,
    chains_of,
    config_of,
    gpus_and_nics,
    is_grace,
    is_guest,
    may_lose_writes,
    near_paths,
    need_guest,
    passed_to_guests,
    redirects_of,
    translated_types,
    type_of_group,
    unknown_devices,
)
from probes.snapshot.examination import Examination

AREA = Area("pcie", __package__, requires=(unknown_devices,))

_PARAMS, _REMAP = "/proc/driver/nvidia/params", "DmaRemapPeerMmio"
_HOST_ONLY = Evidence("/sys/class/dmi/id", "in a virtual machine, only the host's IOMMU matters")
_NO_GROUPS = Evidence("/sys/class/iommu", "no IOMMU in use")


@AREA.warning(
    "iommu-translated", data_path=True, scope=Scope.NODE, requires=(unknown_devices, impossible_by_design)
)
def iommu_translated(examination: Examination) -> Outcome:
    """Check the type of the IOMMU groups of GPUs and NICs: DMA or DMA-FQ; identity (iommu=pt) is fine."""
    if is_grace(examination):
        return passed(Evidence(DEVICES, "on Grace and Vera, the SMMU is part of the path"))
    here = gpus_and_nics(examination)
    if not here:
        return passed(Evidence(DEVICES, "no GPU and no RDMA NIC"))
    if is_guest(examination) is True:
        return passed(_HOST_ONLY)
    bad: dict[str, Evidence] = {}
    tally = Tally()
    for bdf, kind in translated_types(examination).items():
        if isinstance(kind, Unknown):
            tally.unknowns.append(kind)
        else:
            source = f"{GROUPS}/{known(here[bdf].iommu_group, 0)}/type"
            bad[bdf] = Evidence(source, f"{kind}: {examination.topology.labels.get(bdf, '')} {bdf}".strip())
    if bad:
        need_guest(examination, *first_distinct(bad.values(), LIKE_THESE))
        return _translated(examination, bad)
    tally.end_if_unknown()
    types = sorted({known(function.iommu_type, "") for function in here.values()} - {""})
    return passed(Evidence(f"{GROUPS}/*/type", ", ".join(types)) if types else _NO_GROUPS)


def _translated(examination: Examination, bad: dict[str, Evidence]) -> Outcome:
    """Report the translation: critical if DMA was refused, the kernel may lose it, or ACS redirects too."""
    refused = messages_about(examination, (LogKind.IOMMU_FAULT,), chains_of(examination))
    impact = ""
    if refused:
        impact = "The IOMMU has refused DMA from these devices: such transfers fail, or their data is lost."
    elif may_lose_writes(examination):
        impact = (
            "Data may be lost without an error: from Linux 6.12 on, the driver's source hands NICs addresses "
            "of GPU memory that the IOMMU does not map, and one user has seen lost writes (OGK issue 1324). "
            "Otherwise bandwidth falls to a half or less."
        )
    elif redirects_of(examination).ports:
        impact = "GPU traffic is redirected to the CPU's IOMMU: transfers are slow, fail or hang."
    return found(
        "DMA goes through the IOMMU's page tables, and the kernel then enables ACS redirect too.",
        *refused,
        *first_distinct(bad.values(), LIKE_THESE),
        fix=pass_through(examination),
        severity=Severity.CRITICAL if impact else None,
        devices=tuple(bad),
        impact=impact,
    )


@AREA.warning("iommu-fault", data_path=True, part_of=("iommu-translated", "acs-redirect-enabled"))
def iommu_fault(examination: Examination) -> Outcome:
    """Find IOMMU faults in the kernel log that name a GPU, a NIC or a bridge above one."""
    if not gpus_and_nics(examination):
        return passed(Evidence(DEVICES, "no GPU and no RDMA NIC"))
    log = need(examination.kernel_log, KERNEL_LOG)
    chains = chains_of(examination)
    faults = [message for message in log.messages if message.kind is LogKind.IOMMU_FAULT]
    faults = [message for message in faults if message.bdf in chains]
    if not faults:
        return passed(Evidence(log.source, f"no such message{coverage(log)}"))
    bdfs = bdfs_in(faults)
    translated = any(not isinstance(kind, Unknown) for kind in translated_types(examination).values())
    redirected = bool(redirects_of(examination).ports)
    causes = ["iommu-translated"] * translated + ["acs-redirect-enabled"] * redirected
    devices = join_limited(f"{examination.topology.labels.get(bdf, 'bridge')} {bdf}" for bdf in bdfs)
    return found(
        f"{devices}: the device accessed an address that the IOMMU does not map for it. Usual causes are a "
        "translating IOMMU, ACS redirect, or a driver that hands out raw addresses.",
        *messages_about(examination, (LogKind.IOMMU_FAULT,), bdfs),
        fix=reboot_plan(
            "Let peer-to-peer transfers bypass the IOMMU" if causes else "Update the drivers of GPU and NIC",
            f"Fix {' and '.join(causes)}, then read the kernel log again"
            if causes
            else "Update the drivers of GPU and NIC, and read the kernel log again",
        ),
        devices=bdfs,
    )


@AREA.critical(
    "peer-mmio-not-remapped",
    data_path=True,
    part_of=("iommu-translated",),
    scope=Scope.NODE,
    requires=(unknown_devices, impossible_by_design),
)
def peer_mmio_not_remapped(examination: Examination) -> Outcome:
    """Check NVreg_DmaRemapPeerMmio=0 where an IOMMU translates the DMA of a NIC."""
    not_loaded = Evidence(_PARAMS, "not found: the NVIDIA driver is not loaded")
    found_here = map_known(examination.node.gpus, lambda gpus: gpus.driver.parameters)
    value = need(found_here, _PARAMS, absent=not_loaded).get(_REMAP, "1")
    option = Evidence(_PARAMS, f"{_REMAP}: {value}")
    if value != "0":
        return passed(option)
    if need_guest(examination, option):
        return passed(option, _HOST_ONLY)
    tally = Tally()
    for bdf, function in gpus_and_nics(examination).items():
        kind = type_of_group(examination, function)
        if isinstance(kind, Unknown):
            tally.unknowns.append(kind)
        elif function.kind is PciKind.NIC and kind.startswith("DMA"):
            tally.fault(Evidence(f"{GROUPS}/{known(function.iommu_group, 0)}/type", f"{kind}: {bdf}"), bdf)
    return tally.outcome(
        "With NVreg_DmaRemapPeerMmio=0 the driver gives NICs the CPU's addresses of GPU memory, for which "
        "the IOMMU has no mapping.",
        option,
        driver_option_plan(
            examination,
            "Remove the option",
            "Delete NVreg_DmaRemapPeerMmio=0 from `options nvidia` in /etc/modprobe.d",
        ),
    )


def _end_unless_tree_is_hidden(examination: Examination) -> None:
    """End the check unless NCCL sees only the PCI tree that a hypervisor shows."""
    if not need_guest(examination):
        end_with(passed(Evidence("/sys/class/dmi/id", "not a virtual machine")))
    if (file := examination.topology.file) is not None:
        end_with(passed(Evidence(file.path, "NCCL reads the host's PCI tree from this file")))


@AREA.note("vm-without-p2p", requires=(unknown_devices, impossible_by_design))
def vm_without_p2p(examination: Examination) -> Outcome:
    """Check whether any GPU and NIC of a guest share a switch in the tree that the hypervisor shows."""
    here = gpus_and_nics(examination)
    gpus = [function for function in here.values() if function.kind is PciKind.GPU]
    nics = [function for function in here.values() if function.kind is PciKind.NIC]
    if not gpus or not nics:
        return passed(NO_GPU_OR_NIC)
    if near_paths(examination):
        return passed(Evidence(DEVICES, "GPUs and NICs share a switch"))
    _end_unless_tree_is_hidden(examination)
    named = examination.topology.labels
    both = [(end.bdf, f"{named.get(end.bdf, '')}: {end.sysfs_path[:160]}") for end in (gpus[0], nics[0])]
    return found(
        "The hypervisor hides the host's PCIe switches, so NCCL assumes that the path goes through the CPU.",
        *(Evidence(f"readlink -f {DEVICES}/{bdf}", text) for bdf, text in both),
    )


@AREA.warning("vm-without-p2p-ats", data_path=True, requires=(unknown_devices, impossible_by_design))
def vm_without_p2p_ats(examination: Examination) -> Outcome:
    """Check ATSCtl of a guest's ConnectX NICs; clouds with NICs of their own do not use ATS."""
    nics = [function for function in gpus_and_nics(examination).values() if function.kind is PciKind.NIC]
    if not nics:
        return passed(Evidence(DEVICES, "no RDMA NIC"))
    nics = [function for function in nics if known(function.vendor_id, CONNECTX.vendor) == CONNECTX.vendor]
    if not nics:
        return passed(Evidence(DEVICES, "no ConnectX NIC"))
    _end_unless_tree_is_hidden(examination)
    tally = Tally()
    for nic in nics:
        space = config_of(examination, nic.bdf)
        ats = map_known(space, lambda space: space.ats_enabled)
        if isinstance(ats, Unknown):
            # A hypervisor may hide the capability and still use it, so its absence proves nothing.
            is_hidden = ats.reason is Reason.NOT_THERE and not isinstance(space, Unknown)
            hidden = Unknown(ats.reason, ats.source, "the hypervisor shows no ATS: check on the host")
            tally.unknowns.append(hidden if is_hidden else ats)
        elif not ats:
            text = f"{examination.topology.labels.get(nic.bdf, nic.bdf)}: ATSCtl: Enable-"
            tally.fault(Evidence(f"lspci -vvv -s {nic.bdf}", text), nic.bdf)
    return tally.outcome(
        "The host's IOMMU translates the addresses of a guest's NICs. With ATS a NIC requests a translation "
        "once and then reaches the GPU through their switch. Without ATS every request goes up to the CPU.",
        Evidence("lspci -vvv", f"ATS is enabled on {plural(len(nics), 'NIC')}"),
    )


@AREA.note("nic-ats-on-bare-metal", requires=(unknown_devices, impossible_by_design))
def nic_ats_on_bare_metal(examination: Examination) -> Outcome:
    """Check ATSCtl of physical NICs; guests, hosts of guests, Grace and some ACS settings need ATS."""
    nics = [
        function
        for function in gpus_and_nics(examination).values()
        if function.kind is PciKind.NIC and function.physical_function is None
    ]
    if not nics:
        return passed(Evidence(DEVICES, "no RDMA NIC"))
    if is_grace(examination):
        return passed(Evidence(DEVICES, "not judged on Grace and Vera"))
    guests = passed_to_guests(examination)
    if guests:
        source = f"{DEVICES}/{guests[0]}/driver"
        return passed(Evidence(source, "passed to a virtual machine, which needs ATS"))
    tally = Tally()
    for nic in nics:
        # A port above the NIC may rely on ATS: it passes translated requests past its redirects.
        ports = [acs_of(examination, bdf) for bdf in nic.chain[:-1]]
        ats = map_known(config_of(examination, nic.bdf), lambda space: space.ats_enabled)
        if isinstance(ats, Unknown):
            if ats.reason is not Reason.NOT_THERE:
                tally.unknowns.append(ats)
        elif ats and not any(isinstance(port, Acs) and port.on.direct_translated for port in ports):
            text = f"{examination.topology.labels.get(nic.bdf, nic.bdf)}: ATSCtl: Enable+"
            tally.fault(Evidence(f"lspci -vvv -s {nic.bdf}", text), nic.bdf)
    if tally.devices and need_guest(examination):
        return passed(Evidence("/sys/class/dmi/id", "in a virtual machine, the host controls ATS"))
    return tally.outcome(
        "The NIC's firmware offers ATS, and the kernel enables it. NVIDIA turns it off for GPUDirect "
        "RDMA on bare metal.",
        Evidence("lspci -vvv", "ATS is disabled on the NICs"),
        _disable(list(dict.fromkeys(tally.devices))) if tally.devices else None,
    )


def _disable(nics: list[str]) -> Plan:
    look = f"Look at the firmware setting first: `mlxconfig -d {nics[0]} q ATS_ENABLED`"
    return reboot_plan(
        "Disable ATS on the NICs",
        f"{look}. False(0) is the default.",
        *ats_steps(nics, enable=False),
        "Reboot the host: the firmware applies the setting at power-on.",
        note="Keep ATS if this node also runs virtual machines with these NICs.",
    )
