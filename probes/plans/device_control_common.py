"""Bits of PCI Express Device Control, set by setpci until the next reboot."""

from __future__ import annotations

from probes.base.plan import Step

DRAIN = "running jobs that use these NICs: drain the node first"
NOT_LASTING = (
    "A reboot or a reset of the NIC brings the old value back. To keep the new one, set it in the BIOS "
    "or by a systemd unit."
)


def set_bits(bdf: str, why: str, value: int, old: int, mask: int) -> Step:
    """Changes the bits of `mask`, and no others (setpci(8): VALUE:MASK)."""
    return Step(
        why,
        ("setpci", "-s", bdf, f"CAP_EXP+8.w={value:04x}:{mask:04x}"),
        undo=("setpci", "-s", bdf, f"CAP_EXP+8.w={old:04x}:{mask:04x}"),
        group="PCI functions",
    )
