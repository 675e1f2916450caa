"""Access Control Services: what sends traffic between GPU and NIC up to the CPU, and where that is right."""

from __future__ import annotations

import re

from probes.checks.acs_redirects import nics_by_bridge, not_to_be_judged, redirects, redirects_of
from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.pcie_paths import (
    DEVICES,
    acs_evidence,
    acs_of,
    config_of,
    for_guests,
    is_guest,
    labels,
    near_paths,
    unread,
)
from probes.checks.wording import LIKE_THESE, few
from probes.examination import Examination
from probes.plan import Plan, Step, instruction
from probes.plans.acs import CHECK_CMDLINE, boot_option, fix_redirects, is_translated
from probes.plans.interruptions import REBOOT_ENDS_JOBS
from probes.unknown import Reason, Unknown

AREA = Area("pcie")

_MANUAL = (
    "NCCL user guide, troubleshooting, PCI Access Control Services (ACS), "
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
)


@AREA.check(
    "acs-redirect-enabled",
    Severity.CRITICAL,
    "ACS sends traffic between GPU and NIC up to the CPU instead of through their PCIe switch",
    _MANUAL,
)
def acs_redirect_enabled(examination: Examination) -> Outcome:
    """Request and completion redirect of the switch ports where the path of GPU and NIC turns."""
    aside = not_to_be_judged(examination)
    if aside is not None:
        return passed(aside)
    redirects_here = redirects_of(examination)
    bad, unknown = redirects_here.ports, redirects_here.unknown
    if not bad:
        return (
            unread(unknown)
            if unknown
            else passed(Evidence("lspci -vvv", f"no redirect on {redirects_here.looked_at} switch ports"))
        )
    guest = is_guest(examination)
    evidence = few((acs_evidence(bridge, acs) for bridge, acs in bad.items()), LIKE_THESE)
    if isinstance(guest, Unknown):
        needs = f"needs to know whether this is a virtual machine, where ACS has to be on: {guest}"
        return unsure(needs, *evidence)
    guests = for_guests(examination)
    if guests:
        return found(
            "switch ports redirect traffic between peers; this host hands devices to virtual machines, which "
            "redirects keep apart, so do not clear them: give NICs ATS and the ports DirectTrans instead",
            *evidence,
            Evidence(f"{DEVICES}/{guests[0]}", "a virtual machine uses it, or its shares"),
            severity=Severity.NOTE,
            devices=tuple(bad),
        )
    translated = is_translated(examination)
    cause = "switch ports redirect requests or completions between peers to the root complex"
    cause += (
        ", where the IOMMU translates them: transfers fail or hang"
        if translated
        else ": transfers reach a fraction of their rate, and on some CPUs fail"
    )
    return found(
        cause,
        *evidence,
        fix=fix_redirects(examination, bad),
        severity=Severity.CRITICAL if translated else Severity.WARNING,
        devices=tuple(bad),
    )


@AREA.check(
    "acs-direct-translated-without-ats",
    Severity.WARNING,
    "ACS lets translated requests go straight, but the NIC does not translate: its ATS is off",
    "NVIDIA ConnectX firmware, ATS_ENABLED; Linux drivers/pci/ats.c; "
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
)
def acs_direct_translated_without_ats(examination: Examination) -> Outcome:
    """ATS of the NICs whose switch ports redirect all but translated requests."""
    nics = nics_by_bridge(examination, near_paths(examination))
    named = labels(examination)
    bad: dict[str, Evidence] = {}
    unknown: list[Unknown] = []
    relies = 0
    for bridge, behind in nics.items():
        acs = acs_of(examination, bridge)
        if isinstance(acs, Unknown):
            unknown.append(acs)
        elif acs is not None and redirects(acs) and acs.on.direct_translated:
            relies += 1
            for nic in behind:
                space = config_of(examination, nic)
                ats = space if isinstance(space, Unknown) else space.ats_enabled
                if isinstance(ats, Unknown) and ats.reason is not Reason.NOT_THERE:
                    unknown.append(ats)
                elif isinstance(ats, Unknown) or not ats:
                    state = "no ATS capability" if isinstance(ats, Unknown) else "ATSCtl: Enable-"
                    bad[nic] = Evidence(f"lspci -vvv -s {nic}", f"{named.get(nic, nic)}: {state}")
    if bad:
        return found(
            "the ports let by what a device has translated itself and redirect the rest, and "
            "these NICs do not "
            "translate: all their transfers to GPUs take the way through the IOMMU",
            *few(bad.values(), LIKE_THESE),
            fix=_enable_ats(list(bad)),
            devices=tuple(bad),
        )
    if unknown:
        return unread(unknown)
    if not relies:
        return passed(Evidence("lspci -vvv", "no switch port between GPU and NIC relies on ATS"))
    return passed(Evidence("lspci -vvv", "ATS is on in the NICs below ports that rely on it"))


def _enable_ats(nics: list[str]) -> Plan:
    steps = [
        Step(
            f"lets the firmware of {nic} offer ATS",
            ("mlxconfig", "-y", "-d", nic, "set", "ATS_ENABLED=true"),
            undo=("mlxconfig", "-y", "-d", nic, "set", "ATS_ENABLED=false"),
        )
        for nic in nics
    ]
    return Plan(
        "Turn ATS on in the NICs",
        (*steps, instruction("reboot the host: the firmware takes it over then")),
        needs_reboot=True,
        disturbs=f"{REBOOT_ENDS_JOBS} and virtual machine",
    )


@AREA.check(
    "acs-option-ignored",
    Severity.NOTE,
    "the kernel command line has pci=noacs, which the kernel does not know",
    "Linux Documentation/admin-guide/kernel-parameters.txt, pci=",
)
def acs_option_ignored(examination: Examination) -> Outcome:
    """pci=noacs, which guides tell to set and mainline kernels ignore."""
    kernel = examination.node.kernel
    cmdline = kernel if isinstance(kernel, Unknown) else kernel.cmdline
    if isinstance(cmdline, Unknown):
        return unread([cmdline])
    for word in cmdline.split():
        if word.startswith("pci=") and "noacs" in re.split(r"[=,]", word):
            return found(
                "no mainline kernel has this option, so ACS stays as the firmware and the kernel set it",
                Evidence("/proc/cmdline", word[:120]),
                fix=Plan(
                    "Replace pci=noacs",
                    (
                        instruction(
                            "replace pci=noacs in the boot loader's configuration; for grub: "
                            f"{boot_option(['<BDF>', '<BDF>'])} with the BDFs of the switch ports "
                            "(or, from Linux 6.11, pci=config_acs=)"
                        ),
                        instruction(CHECK_CMDLINE),
                    ),
                    needs_reboot=True,
                    disturbs=REBOOT_ENDS_JOBS,
                ),
            )
    return passed(Evidence("/proc/cmdline", "no pci=noacs"))
