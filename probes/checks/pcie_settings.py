"""What the Device Control registers of NICs, GPUs and the ports between them are set to."""

from __future__ import annotations

from collections.abc import Callable

from probes.checks.finding import Area, Evidence, Outcome, Severity, passed
from probes.checks.pcie_paths import (
    BRIDGES,
    DEVICES,
    express_of,
    functions_of,
    judged,
    labels,
    near_paths,
    nic_registers,
)
from probes.examination import Examination
from probes.pci_capabilities import PciExpress
from probes.plan import Plan, Step, instruction
from probes.plans.device_control import DRAIN, NOT_LASTING, set_bits
from probes.plans.interruptions import REBOOT_ENDS_JOBS
from probes.unknown import Reason, Unknown, known

AREA = Area("pcie")

SPEC = "PCI Express Base Specification, Device Control Register; Linux include/uapi/linux/pci_regs.h"
_ASPM = ("off", "L0s", "L1", "L0s L1")  # in the order of the register's two bits
_ON = "all NICs have it on"


def each_nic(
    examination: Examination,
    wrong: Callable[[PciExpress], str | Unknown],
    cause: str,
    good: str,
    fix: Callable[[dict[str, PciExpress]], Plan] | None = None,
) -> Outcome:
    """Judges every NIC by its registers; `wrong` says what is wrong, "" nothing."""
    named = labels(examination)
    bad: dict[str, PciExpress] = {}
    evidence: list[Evidence] = []
    unknown: list[Unknown] = []
    nics = nic_registers(examination)
    for bdf, express in nics.items():
        told = express if isinstance(express, Unknown) else wrong(express)
        if isinstance(told, Unknown):
            unknown.append(told)
        elif told and not isinstance(express, Unknown):
            bad[bdf] = express
            evidence.append(Evidence(f"lspci -vvv -s {bdf}", f"{named.get(bdf, bdf)}: {told}"))
    if not nics:
        return passed(Evidence(DEVICES, "no NIC here whose settings are this node's"))
    plan = fix(bad) if fix is not None and bad else None
    return judged(cause, evidence, unknown, Evidence("lspci -vvv", good), plan, list(bad))


@AREA.check(
    "pcie-devctl-relaxed-ordering",
    Severity.WARNING,
    "relaxed ordering is off in a NIC",
    "NCCL user guide, NCCL_IB_PCI_RELAXED_ORDERING, "
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html; openucx/ucx issue 8062",
)
def pcie_devctl_relaxed_ordering(examination: Examination) -> Outcome:
    """Enable Relaxed Ordering (RlxdOrd) in each NIC's Device Control."""

    def fix(bad: dict[str, PciExpress]) -> Plan:
        steps = [set_bits(bdf, f"lets {bdf} ask for relaxed ordering", 0x10, 0, 0x10) for bdf in bad]
        return Plan(
            "Turn relaxed ordering on", (*steps, instruction(NOT_LASTING)), disturbs=DRAIN, note=_WHY_OFF
        )

    return each_nic(
        examination,
        lambda express: "" if express.relaxed_ordering else "DevCtl: RlxdOrd-",
        "the NIC may not mark its writes as free to overtake: on many CPUs, and in virtual "
        "machines above all, "
        "writes then wait for each other",
        "RlxdOrd+: " + _ON,
        fix,
    )


_WHY_OFF = (
    "the kernel itself turns it off below root ports that are known to break on it (drivers/pci/quirks.c)"
)


@AREA.check(
    "pcie-devctl-payload-differs",
    Severity.WARNING,
    "MaxPayload differs on the way between a GPU and a NIC",
    "PCI Express Base Specification, Max_Payload_Size; Linux "
    "Documentation/admin-guide/kernel-parameters.txt, "
    "pci=pcie_bus_safe",
)
def pcie_devctl_payload_differs(examination: Examination) -> Outcome:
    """Max_Payload_Size of GPU, NIC and the ports between them, which must take what the others send."""
    functions = functions_of(examination)
    nics = {nic.id: known(nic.bdf, "") for nic in examination.topology.nics}
    bad: dict[str, Evidence] = {}
    unknown: dict[str, Unknown] = {}
    paths = near_paths(examination)
    for path in paths:
        both = (path.a, nics[path.b])
        if any(functions[bdf].physical_function is not None for bdf in both):
            continue
        sizes: dict[str, int] = {}
        for bdf in (both[0], *(hop.id for hop in path.hops if hop.kind in BRIDGES), both[1]):
            express = express_of(examination, bdf)
            size = express if isinstance(express, Unknown) else express.max_payload_bytes
            if isinstance(size, Unknown):
                unknown[bdf] = size
            else:
                sizes[bdf] = size
        sent = max((sizes[bdf] for bdf in both if bdf in sizes), default=0)
        for bdf, size in sizes.items():
            if size < sent:
                named = labels(examination).get(bdf, bdf)
                bad[bdf] = Evidence(
                    f"lspci -vvv -s {bdf}", f"{named}: DevCtl: MaxPayload {size} bytes, its peer sends {sent}"
                )
    return judged(
        "a function may drop packets larger than its own MaxPayload as malformed, which is a "
        "fatal PCIe error; "
        "between peers nobody splits them",
        list(bad.values()),
        list(unknown.values()),
        Evidence("lspci -vvv", f"MaxPayload is alike on {len(paths)} paths" if paths else "no near pairs"),
        Plan(
            "Make MaxPayload alike",
            (
                instruction(
                    "set one MaxPayload for all slots in the BIOS, or leave it to the BIOS's default"
                ),
                instruction("or add pci=pcie_bus_safe to the kernel command line, which makes them alike"),
            ),
            needs_reboot=True,
            disturbs=REBOOT_ENDS_JOBS,
        ),
        list(bad),
    )


@AREA.check(
    "pcie-devctl-extended-tags",
    Severity.NOTE,
    "extended tags are off in a NIC: at most 32 requests are on their way",
    "PCI Express Base Specification, Extended Tag Field Enable; Linux drivers/pci/probe.c, "
    "pci_configure_extended_tags",
)
def pcie_devctl_extended_tags(examination: Examination) -> Outcome:
    """Extended Tag Field Enable (ExtTag) in each NIC's Device Control."""

    def wrong(express: PciExpress) -> str | Unknown:
        # 10-bit tags make this bit meaningless.
        if express.extended_tags or known(express.ten_bit_tags, False):
            return ""
        return "DevCtl: ExtTag-, DevCtl2: 10BitTagReq-"

    return each_nic(
        examination,
        wrong,
        "with 5-bit tags a NIC reads at most 32 pieces at a time, too few for a fast link; the kernel turns "
        "extended tags off for a whole tree where one device in it does not bear them",
        "ExtTag+: " + _ON,
        lambda bad: Plan(
            "Find what forbids extended tags",
            (instruction("look in the kernel log for 'disabling Extended Tags', and in the BIOS"),),
            needs_reboot=True,
            disturbs=REBOOT_ENDS_JOBS,
        ),
    )


@AREA.check(
    "pcie-aspm-on",
    Severity.NOTE,
    "a NIC's PCIe link goes to sleep when idle (ASPM)",
    "Linux Documentation/ABI/testing/sysfs-bus-pci, link/l1_aspm; kernel-parameters.txt, pcie_aspm=",
)
def pcie_aspm_on(examination: Examination) -> Outcome:
    """Link Control's ASPM of each NIC."""

    def wrong(express: PciExpress) -> str | Unknown:
        if isinstance(express.aspm, Unknown):
            return "" if express.aspm.reason is Reason.NOT_THERE else express.aspm
        return "" if express.aspm == "off" else f"LnkCtl: ASPM {express.aspm} Enabled"

    def fix(bad: dict[str, PciExpress]) -> Plan:
        steps = [
            Step(
                f"keeps the link of {bdf} awake",
                ("setpci", "-s", bdf, "CAP_EXP+10.w=0000:0003"),
                undo=(
                    "setpci",
                    "-s",
                    bdf,
                    f"CAP_EXP+10.w={_ASPM.index(known(express.aspm, 'off')):04x}:0003",
                ),
            )
            for bdf, express in bad.items()
        ]
        lasting = instruction("to keep it: ASPM off in the BIOS, or pcie_aspm.policy=performance")
        return Plan("Keep the links of NICs awake", (*steps, lasting))

    return each_nic(
        examination,
        wrong,
        "a link that sleeps takes microseconds to wake: small messages after a pause are late",
        "ASPM Disabled in all NICs",
        fix,
    )
