"""Whether setpci(8) can write PCI configuration space."""

from __future__ import annotations

from probes.base.unknown import Unknown
from probes.snapshot.examination import Examination

_LOCKED = ("integrity", "confidentiality")


def why_no_setpci(examination: Examination) -> str:
    """Return why setpci cannot write a register here, or "".

    Kernel lockdown refuses the write (LOCKDOWN_PCI_ACCESS, drivers/pci/pci-sysfs.c), and setpci exits with 0.
    """
    kernel = examination.node.kernel
    mode = kernel if isinstance(kernel, Unknown) else kernel.lockdown
    if mode not in _LOCKED:
        return ""
    return f"kernel lockdown is on ({mode}), so setpci cannot write PCI registers; use the BIOS instead"
