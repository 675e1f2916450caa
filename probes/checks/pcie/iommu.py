"""The IOMMU between NIC and GPU memory, and what a virtual machine cannot see of the path."""

from __future__ import annotations

from probes.base.plan import Plan, instruction
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpudirect import GdrPath
from probes.facts.kernel.log import LogKind
from probes.facts.pci.functions import PciKind
from probes.plans.iommu import is_arm64, pass_through
from probes.queries.acs_redirects import redirects_of
from probes.queries.evidence_list import LIKE_THESE, first_distinct
from probes.queries.finding import Area, Evidence, Outcome, Severity, found, passed, unknown
from probes.queries.pcie_paths import (
    DEVICES,
    config_of,
    gpus_and_nics,
    is_grace,
    is_guest,
    labels,
    near_paths,
    needs_platform,
    plural,
    unknown_because,
    unknown_devices,
)
from probes.snapshot.examination import Examination

AREA = Area("pcie", requires=(unknown_devices,))

_GROUPS = "/sys/kernel/iommu_groups"
_NOT_A_GUEST = Evidence("/sys/class/dmi/id", "not a virtual machine")
_NO_GROUPS = Evidence("/sys/class/iommu", "no IOMMU in use")


@AREA.check(
    "iommu-translated",
    Severity.WARNING,
    "The IOMMU translates the DMA of GPUs or NICs",
    "Linux Documentation/ABI/testing/sysfs-kernel-iommu_groups; NCCL user guide, troubleshooting, IO "
    "virtualization, https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html; "
    "NVIDIA/open-gpu-kernel-modules issue 1324",
    ok="The IOMMU does not translate the DMA of GPUs and NICs",
    impact="GPU traffic detours through the CPU's IOMMU. Users report a half to a third of the bandwidth, "
    "and sometimes errors or hangs.",
    data_path=True,
)
def iommu_translated(examination: Examination) -> Outcome:
    """Judge the type of the IOMMU groups of GPUs and NICs: DMA or DMA-FQ; identity (iommu=pt) is fine."""
    if is_grace(examination):
        return passed(Evidence(DEVICES, "on Grace the SMMU belongs to the path"))
    here = gpus_and_nics(examination)
    if not here:
        return passed(Evidence(DEVICES, "no GPU and no RDMA NIC here"))
    guest = is_guest(examination)
    if not isinstance(guest, Unknown) and guest:
        return passed(Evidence("/sys/class/dmi/id", "a virtual machine: the host's IOMMU counts"))
    named = labels(examination)
    bad: dict[str, Evidence] = {}
    unknowns: list[Unknown] = []
    for bdf, one in here.items():
        kind = _type_of(examination, one.iommu_group, one.iommu_type)
        if isinstance(kind, Unknown):
            unknowns.append(kind)
        elif kind.startswith("DMA"):
            source = f"{_GROUPS}/{known(one.iommu_group, 0)}/type"
            bad[bdf] = Evidence(source, f"{kind}: {named.get(bdf, '')} {bdf}".strip())
    if bad and isinstance(guest, Unknown):
        return unknown(needs_platform(guest), *first_distinct(bad.values(), LIKE_THESE))
    if bad:
        return _translated(examination, bad)
    if unknowns:
        return unknown_because(unknowns)
    types = sorted({known(one.iommu_type, "") for one in here.values()} - {""})
    return passed(Evidence(f"{_GROUPS}/*/type", ", ".join(types)) if types else _NO_GROUPS)


def _translated(examination: Examination, bad: dict[str, Evidence]) -> Outcome:
    """Warn, or worse: where requests were refused, the path is DMA-BUF, or ACS redirects besides."""
    refused = _refused(examination)
    impact = ""
    if refused:
        impact = "The IOMMU has refused DMA of these devices: such transfers fail, or their data is lost."
    elif examination.verdict.path is GdrPath.DMABUF:
        # The driver handed out raw BAR addresses: OGK issue 1324 (595.84, Linux 7.0).
        impact = (
            "Data can be lost without an error: with DMA-BUF, an open driver was seen to hand out raw BAR "
            "addresses, and the IOMMU discards writes to those. Otherwise bandwidth falls to a half or less."
        )
    elif redirects_of(examination).ports:
        impact = "GPU traffic is redirected to the CPU's IOMMU: transfers are slow, fail or hang."
    return found(
        "DMA goes through page tables of the IOMMU, and the kernel enables ACS redirect with it.",
        *refused,
        *first_distinct(bad.values(), LIKE_THESE),
        fix=pass_through(examination),
        severity=Severity.CRITICAL if impact else None,
        devices=tuple(bad),
        impact=impact,
    )


def _refused(examination: Examination) -> tuple[Evidence, ...]:
    """The IOMMU faults in the kernel log of GPUs, NICs and the bridges above them."""
    log = examination.kernel_log
    if isinstance(log, Unknown):
        return ()
    concerned = {bdf for one in gpus_and_nics(examination).values() for bdf in one.chain}
    messages = (one for one in reversed(log.messages) if one.kind is LogKind.IOMMU_FAULT)
    return first_distinct(Evidence(log.source, one.text) for one in messages if one.bdf in concerned)


def _type_of(examination: Examination, group: Maybe[int], kind: Maybe[str]) -> Maybe[str]:
    """The type of a group; "" where there is no group, by the command line where the kernel shows no type."""
    if isinstance(group, Unknown):
        return "" if group.reason is Reason.NOT_THERE else group
    if not isinstance(kind, Unknown) or kind.reason is not Reason.NOT_THERE:
        return kind
    kernel = examination.node.kernel
    cmdline = "" if isinstance(kernel, Unknown) else known(kernel.cmdline, "")
    if any(_is_direct(word, is_arm64(examination)) for word in cmdline.split()):
        return "identity"
    return Unknown(
        Reason.NOT_THERE, f"{_GROUPS}/{group}/type", "needs Linux 5.11, which shows a group's type"
    )


def _is_direct(word: str, arm: bool) -> bool:
    """Whether an option of the kernel makes the IOMMU pass DMA through; iommu=pt exists on x86 alone."""
    name, _, value = word.partition("=")
    if name == "iommu":
        return not arm and "pt" in value.split(",")
    return name == "iommu.passthrough" and value in ("1", "on", "y", "Y")


@AREA.check(
    "vm-without-p2p",
    Severity.NOTE,
    "This virtual machine shows no PCIe switch between GPUs and NICs",
    "NCCL user guide, environment variables, NCCL_TOPO_FILE, "
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html; NVIDIA/nccl issue 1519",
    ok="GPUs and NICs share a PCIe switch, or this is no virtual machine",
    impact="NCCL disables GPUDirect RDMA by default, unless NCCL_TOPO_FILE names the host's PCI tree.",
)
def vm_without_p2p(examination: Examination) -> Outcome:
    """Judge whether any GPU and NIC of a guest share a switch in the tree that the hypervisor shows."""
    here = gpus_and_nics(examination)
    gpus = [one for one in here.values() if one.kind is PciKind.GPU]
    nics = [one for one in here.values() if one.kind is PciKind.NIC]
    if not gpus or not nics:
        return passed(Evidence(DEVICES, "no GPU or no RDMA NIC here"))
    if near_paths(examination):
        return passed(Evidence(DEVICES, "GPUs and NICs share a switch"))
    guest = is_guest(examination)
    if isinstance(guest, Unknown):
        return unknown(needs_platform(guest))
    if not guest:
        return passed(_NOT_A_GUEST)
    named = labels(examination)
    return found(
        "The hypervisor hides the PCIe switches of the real machine, so that NCCL takes the path for one "
        "through the CPU.",
        *(
            Evidence(f"readlink -f {DEVICES}/{one.bdf}", f"{named.get(one.bdf, '')}: {one.sysfs_path[:160]}")
            for one in (gpus[0], nics[0])
        ),
        fix=Plan(
            "Give NCCL the host's PCI tree",
            (
                instruction(
                    "Get the cloud provider's topology file for this machine type, and set NCCL_TOPO_FILE "
                    "to it in the job's environment or in /etc/nccl.conf.",
                    needs_root=False,
                ),
                instruction(
                    "On your own hypervisor: show the guest a switch above GPU and NIC, and allow "
                    "peer-to-peer (ESXi: pciPassthru.allowP2P=TRUE and pciPassthru.RelaxACSforP2P=TRUE)."
                ),
            ),
            note="Running jobs keep their current path until they restart.",
        ),
    )


@AREA.check(
    "vm-without-p2p-ats",
    Severity.WARNING,
    "ATS is disabled on a NIC of this virtual machine",
    "NVIDIA AI Enterprise, optimizing VM configuration for AI inference, ATS; NVIDIA/nccl-tests issue 380",
    ok="ATS is enabled on the NICs of this virtual machine, or this is none",
    impact="Every transfer to a GPU goes through the host's IOMMU: about half the rate of bare metal "
    "(reported: 180 instead of 320 GB/s).",
    data_path=True,
)
def vm_without_p2p_ats(examination: Examination) -> Outcome:
    """Judge ATSCtl of a guest's NICs."""
    nics = [one for one in gpus_and_nics(examination).values() if one.kind is PciKind.NIC]
    if not nics:
        return passed(Evidence(DEVICES, "no RDMA NIC here"))
    guest = is_guest(examination)
    if isinstance(guest, Unknown):
        return unknown(needs_platform(guest))
    if not guest:
        return passed(_NOT_A_GUEST)
    named = labels(examination)
    bad: dict[str, Evidence] = {}
    unknowns: list[Unknown] = []
    for one in nics:
        space = config_of(examination, one.bdf)
        ats = space if isinstance(space, Unknown) else space.ats_enabled
        if isinstance(ats, Unknown):
            # A hypervisor may hide the capability and use it all the same: no capability says nothing.
            hidden = ats.reason is Reason.NOT_THERE and not isinstance(space, Unknown)
            needs = Unknown(ats.reason, ats.source, "the hypervisor shows no ATS: check on the host")
            unknowns.append(needs if hidden else ats)
        elif not ats:
            bad[one.bdf] = Evidence(
                f"lspci -vvv -s {one.bdf}", f"{named.get(one.bdf, one.bdf)}: ATSCtl: Enable-"
            )
    if bad:
        return found(
            "The host's IOMMU translates the addresses of a guest's NICs. With ATS a NIC asks once and then "
            "reaches the GPU through their switch; without it every request goes up to the CPU.",
            *first_distinct(bad.values(), LIKE_THESE),
            fix=Plan(
                "Enable ATS on the host",
                (
                    instruction(
                        "On the host, run: mlxconfig -d <NIC> set ATS_ENABLED=true. Then reboot the host."
                    ),
                    instruction("On the host, enable DirectTrans in ACS of the switch ports above (ACSCtl)."),
                ),
                needs_reboot=True,
                disturbs="every guest of the host, which reboots",
            ),
            devices=tuple(bad),
        )
    if unknowns:
        return unknown_because(unknowns)
    return passed(Evidence("lspci -vvv", f"ATS is enabled on {plural(len(nics), 'NIC')}"))
