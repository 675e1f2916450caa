"""Raise Max_Read_Request_Size (MRRS) of NICs, and set other bits of PCI Express Device Control."""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.plan import NothingToDo, Plan, Step, instruction
from probes.base.unknown import Unknown
from probes.plans.nic_firmware import look_at_reads
from probes.plans.register_writes import why_no_setpci
from probes.queries.pcie_paths import nic_registers, reason_of
from probes.snapshot.examination import Examination

USUAL_READ_BYTES = 4096
_FIELD = 0x7000  # PCI_EXP_DEVCTL_READRQ, include/uapi/linux/pci_regs.h


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
        return "this node controls no NIC"
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
    looks = look_at_reads(examination, low)
    return Plan("Raise MaxReadReq", (*steps, instruction(NOT_LASTING), *looks), disturbs=DRAIN)


def _code(size_bytes: int) -> int:
    """Return the field's value: the size is 128 << value."""
    return (size_bytes // 128).bit_length() - 1


DRAIN = "running jobs that use these NICs (drain the node first)"
NOT_LASTING = (
    "A reboot or a NIC reset restores the old value. To keep the new one, set it in the BIOS or with "
    "a systemd unit."
)


def set_bits(bdf: str, why: str, value: int, old: int, mask: int) -> Step:
    """Set the bits of `mask`, and no others, until the next reboot (setpci(8): VALUE:MASK)."""
    return Step(
        why,
        ("setpci", "-s", bdf, f"CAP_EXP+8.w={value:04x}:{mask:04x}"),
        undo=("setpci", "-s", bdf, f"CAP_EXP+8.w={old:04x}:{mask:04x}"),
        group="PCI functions",
    )
