"""Letting NICs read in larger pieces: Max_Read_Request_Size (MRRS) of PCI Express Device Control."""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.plan import Plan, instruction
from probes.base.unknown import Unknown
from probes.plans.device_control_common import DRAIN, NOT_LASTING, set_bits
from probes.plans.register_writes import why_no_setpci
from probes.queries.pcie_paths import nic_registers, reason_of
from probes.snapshot.examination import Examination

USUAL_READ_BYTES = 4096
_FIELD = 0x7000  # PCI_EXP_DEVCTL_READRQ, include/uapi/linux/pci_regs.h


def raise_reads(examination: Examination) -> Plan | str:
    """Sets MaxReadReq of each NIC that has less to 4096 bytes."""
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
        return why_no_setpci(examination) or raising(low)
    if unknown:
        return reason_of(unknown[0])
    if not nics:
        return "no NIC here whose settings are this node's"
    return f"all {len(nics)} NICs have {USUAL_READ_BYTES} bytes or more"


def raising(low: Mapping[str, int]) -> Plan:
    """Sets the NICs of these BDFs, which have so many bytes now."""
    steps = [
        set_bits(
            bdf,
            f"Set MaxReadReq of {bdf} from {size} to {USUAL_READ_BYTES} bytes, and no other bit",
            _code(USUAL_READ_BYTES) << 12,
            _code(size) << 12,
            _FIELD,
        )
        for bdf, size in low.items()
    ]
    return Plan("Raise MaxReadReq", (*steps, instruction(NOT_LASTING)), disturbs=DRAIN)


def _code(size_bytes: int) -> int:
    """The field's number: 128 << number is the size."""
    return (size_bytes // 128).bit_length() - 1
