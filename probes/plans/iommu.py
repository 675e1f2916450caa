"""Set the IOMMU to passthrough."""

from __future__ import annotations

from probes.base.plan import Plan, instruction
from probes.base.unknown import known
from probes.facts.system.platform import PlatformFacts
from probes.plans.common import REBOOT_ENDS_JOBS
from probes.snapshot.examination import Examination


def is_arm64(examination: Examination) -> bool:
    """Return whether the CPU is arm64, where the kernel options have other names."""
    platform = examination.node.platform
    return isinstance(platform, PlatformFacts) and known(platform.cpu_architecture, "") in (
        "aarch64",
        "arm64",
    )


def pass_through_option(examination: Examination) -> str:
    """Return the kernel option of this architecture (kernel-parameters.txt): iommu=pt is x86 only."""
    return "iommu.passthrough=1" if is_arm64(examination) else "iommu=pt"


def pass_through(examination: Examination) -> Plan:
    """Set the IOMMU to passthrough with a kernel option and a reboot."""
    option = pass_through_option(examination)
    keep = "" if is_arm64(examination) else " Keep intel_iommu=on if virtual functions are used."
    return Plan(
        "Set the IOMMU to passthrough",
        (
            instruction(f"Add {option} to the kernel command line in the boot loader's configuration."),
            instruction("Apply the configuration (update-grub, grub2-mkconfig or bootctl), then reboot."),
            instruction(f"After the reboot, check that /proc/cmdline contains {option}."),
        ),
        needs_reboot=True,
        disturbs=REBOOT_ENDS_JOBS,
        note="DMA of devices passed through to virtual machines is still translated." + keep,
    )
