"""The IOMMU between NIC and GPU memory, and what a virtual machine cannot see of the path."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.pcie_paths import DEVICES, config_of, ends, is_grace, is_guest, labels, near_paths, unread
from probes.checks.wording import LIKE_THESE, few
from probes.examination import Examination
from probes.pci import PciKind
from probes.plan import Plan, instruction
from probes.plans.interruptions import REBOOT_ENDS_JOBS
from probes.unknown import Maybe, Reason, Unknown, known

AREA = Area("pcie")

_GROUPS = "/sys/kernel/iommu_groups"
_DIRECT = ("iommu=pt", "iommu.passthrough=1", "iommu.passthrough=on", "iommu.passthrough=y")
_NEEDS_PLACE = "needs to know whether this is a virtual machine"
_NOT_A_GUEST = Evidence("/sys/class/dmi/id", "not a virtual machine")
_NO_GROUPS = Evidence("/sys/class/iommu", "no IOMMU in use")


@AREA.check(
    "iommu-translated",
    Severity.WARNING,
    "the IOMMU translates the DMA of GPUs or NICs",
    "Linux Documentation/ABI/testing/sysfs-kernel-iommu_groups; NCCL user guide, troubleshooting, IO "
    "virtualization, https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
)
def iommu_translated(examination: Examination) -> Outcome:
    """The type of the IOMMU groups of GPUs and NICs: DMA or DMA-FQ; identity (iommu=pt) is fine."""
    if is_grace(examination):
        return passed(Evidence(DEVICES, "on Grace the SMMU belongs to the path"))
    here = ends(examination)
    if not here:
        return passed(Evidence(DEVICES, "no GPU and no RDMA NIC here"))
    guest = is_guest(examination)
    if not isinstance(guest, Unknown) and guest:
        return passed(Evidence("/sys/class/dmi/id", "a virtual machine: the host's IOMMU counts"))
    named = labels(examination)
    bad: dict[str, Evidence] = {}
    unknown: list[Unknown] = []
    for bdf, one in here.items():
        kind = _type_of(examination, one.iommu_group, one.iommu_type)
        if isinstance(kind, Unknown):
            unknown.append(kind)
        elif kind.startswith("DMA"):
            source = f"{_GROUPS}/{known(one.iommu_group, 0)}/type"
            bad[bdf] = Evidence(source, f"{kind}: {named.get(bdf, '')} {bdf}".strip())
    if bad and isinstance(guest, Unknown):
        return unsure(f"{_NEEDS_PLACE}: {guest}", *few(bad.values(), LIKE_THESE))
    if bad:
        return found(
            "DMA goes through page tables of the IOMMU: it costs bandwidth, and the kernel "
            "turns ACS on besides",
            *few(bad.values(), LIKE_THESE),
            fix=_pass_through(),
            devices=tuple(bad),
        )
    if unknown:
        return unread(unknown)
    types = sorted({known(one.iommu_type, "") for one in here.values()} - {""})
    return passed(Evidence(f"{_GROUPS}/*/type", ", ".join(types)) if types else _NO_GROUPS)


def _type_of(examination: Examination, group: Maybe[int], kind: Maybe[str]) -> Maybe[str]:
    """The type of a group; "" where there is no group, by the command line where the kernel tells no type."""
    if isinstance(group, Unknown):
        return "" if group.reason is Reason.NOT_THERE else group
    if not isinstance(kind, Unknown) or kind.reason is not Reason.NOT_THERE:
        return kind
    kernel = examination.node.kernel
    cmdline = "" if isinstance(kernel, Unknown) else known(kernel.cmdline, "")
    if any(word in _DIRECT for word in cmdline.split()):
        return "identity"
    return Unknown(
        Reason.NOT_THERE, f"{_GROUPS}/{group}/type", "needs Linux 5.11, which tells a group's type"
    )


def _pass_through() -> Plan:
    return Plan(
        "Let DMA pass through the IOMMU",
        (
            instruction("add iommu=pt to the kernel command line in the boot loader's configuration"),
            instruction("write that configuration out (update-grub, grub2-mkconfig or bootctl), then reboot"),
        ),
        needs_reboot=True,
        disturbs=REBOOT_ENDS_JOBS,
        note="keep intel_iommu=on where virtual functions are used; devices handed to guests stay translated",
    )


@AREA.check(
    "vm-without-p2p",
    Severity.NOTE,
    "this virtual machine sees no PCIe switch between GPUs and NICs: NCCL leaves GPUDirect RDMA "
    "off by default",
    "NCCL user guide, environment variables, NCCL_TOPO_FILE, "
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html; NVIDIA/nccl issue 1519",
)
def vm_without_p2p(examination: Examination) -> Outcome:
    """Whether any GPU and NIC of a guest share a switch in the tree that the hypervisor shows."""
    here = ends(examination)
    gpus = [one for one in here.values() if one.kind is PciKind.GPU]
    nics = [one for one in here.values() if one.kind is PciKind.NIC]
    if not gpus or not nics:
        return passed(Evidence(DEVICES, "no GPU or no RDMA NIC here"))
    if near_paths(examination):
        return passed(Evidence(DEVICES, "GPUs and NICs share a switch"))
    guest = is_guest(examination)
    if isinstance(guest, Unknown):
        return unsure(f"{_NEEDS_PLACE}: {guest}")
    if not guest:
        return passed(_NOT_A_GUEST)
    named = labels(examination)
    return found(
        "what lies between GPU and NIC in the real machine is not shown here. NCCL takes the "
        "way for one through "
        "the CPU, unless NCCL_TOPO_FILE names a file with the host's PCI tree",
        *(
            Evidence(f"readlink -f {DEVICES}/{one.bdf}", f"{named.get(one.bdf, '')}: {one.sysfs_path[:160]}")
            for one in (gpus[0], nics[0])
        ),
        fix=Plan(
            "Tell NCCL the host's PCI tree",
            (
                instruction(
                    "get the topology file that the cloud's provider gives for this machine type, and set "
                    "NCCL_TOPO_FILE to it in the job's environment or /etc/nccl.conf",
                    needs_root=False,
                ),
                instruction(
                    "own hypervisor: show the guest a switch above GPU and NIC, and allow "
                    "peer-to-peer (ESXi: "
                    "pciPassthru.allowP2P=TRUE and pciPassthru.RelaxACSforP2P=TRUE)"
                ),
            ),
            disturbs="jobs take it up when they are started again",
        ),
    )


@AREA.check(
    "vm-without-p2p-ats",
    Severity.WARNING,
    "ATS is off in a NIC of this virtual machine: each of its transfers to a GPU goes through "
    "the host's IOMMU",
    "NVIDIA AI Enterprise, optimizing VM configuration for AI inference, ATS; NVIDIA/nccl-tests issue 380",
)
def vm_without_p2p_ats(examination: Examination) -> Outcome:
    """ATSCtl of a guest's NICs."""
    nics = [one for one in ends(examination).values() if one.kind is PciKind.NIC]
    if not nics:
        return passed(Evidence(DEVICES, "no RDMA NIC here"))
    guest = is_guest(examination)
    if isinstance(guest, Unknown):
        return unsure(f"{_NEEDS_PLACE}: {guest}")
    if not guest:
        return passed(_NOT_A_GUEST)
    named = labels(examination)
    bad: dict[str, Evidence] = {}
    unknown: list[Unknown] = []
    for one in nics:
        space = config_of(examination, one.bdf)
        ats = space if isinstance(space, Unknown) else space.ats_enabled
        if isinstance(ats, Unknown):
            # A hypervisor may hide the capability and use it all the same: no capability says nothing.
            hidden = ats.reason is Reason.NOT_THERE and not isinstance(space, Unknown)
            needs = Unknown(ats.reason, ats.source, "the hypervisor shows no ATS: ask on the host")
            unknown.append(needs if hidden else ats)
        elif not ats:
            bad[one.bdf] = Evidence(
                f"lspci -vvv -s {one.bdf}", f"{named.get(one.bdf, one.bdf)}: ATSCtl: Enable-"
            )
    if bad:
        return found(
            "in a guest the host's IOMMU translates the addresses of NICs; with ATS a NIC asks once and then "
            "reaches the GPU below their switch, without it every request climbs up to the CPU",
            *few(bad.values(), LIKE_THESE),
            fix=Plan(
                "Turn ATS on, on the host",
                (
                    instruction("on the host: mlxconfig -d <NIC> set ATS_ENABLED=true, then reboot the host"),
                    instruction("on the host: ACS of the switch ports above has DirectTrans on (ACSCtl)"),
                ),
                needs_reboot=True,
                disturbs="the host's reboot ends all its guests",
            ),
            devices=tuple(bad),
        )
    if unknown:
        return unread(unknown)
    return passed(Evidence("lspci -vvv", f"ATS is on in {len(nics)} NICs"))
