"""Letting DMA pass the IOMMU untranslated."""

from __future__ import annotations

from probes.examination import Examination
from probes.plan import Plan, instruction
from probes.plans.interruptions import REBOOT_ENDS_JOBS
from probes.platform import PlatformFacts
from probes.unknown import known

_ARM64 = ("aarch64", "arm64")


def pass_through_option(examination: Examination) -> str:
    """Return the kernel option of this architecture (kernel-parameters.txt): iommu=pt is x86 only."""
    platform = examination.node.platform
    architecture = known(platform.cpu_architecture, "") if isinstance(platform, PlatformFacts) else ""
    return "iommu.passthrough=1" if architecture in _ARM64 else "iommu=pt"


def pass_through(examination: Examination) -> Plan:
    """Add the option to the kernel command line."""
    option = pass_through_option(examination)
    return Plan(
        "Let DMA pass through the IOMMU",
        (
            instruction(f"add {option} to the kernel command line in the boot loader's configuration"),
            instruction("write that configuration out (update-grub, grub2-mkconfig or bootctl), then reboot"),
            instruction(f"after the reboot, check /proc/cmdline: {option} must be in it"),
        ),
        needs_reboot=True,
        disturbs=REBOOT_ENDS_JOBS,
        note="keep intel_iommu=on where virtual functions are used; devices passed to guests stay translated",
    )
