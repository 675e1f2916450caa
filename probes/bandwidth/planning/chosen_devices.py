"""The GPU and the NIC that a user named on the command line."""

from __future__ import annotations

from probes.bandwidth.model.command import Refused
from probes.base.text import printable
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.rdma.devices import RdmaFacts
from probes.snapshot.examination import Examination


class NoSuchDevice(Refused):
    """This node does not have the requested GPU or NIC."""


def bdf_of(examination: Examination, typed: str) -> str | Refused:
    """Return the PCI address of a GPU given by its number or address, with or without the domain."""
    facts = examination.node.gpus
    if not isinstance(facts, GpuFacts):
        return Refused(f"GPUs unknown: {facts}")
    name = typed.lower()
    for gpu in facts.gpus:
        if name in (str(gpu.index), f"gpu{gpu.index}", gpu.bdf, gpu.bdf.removeprefix("0000:")):
            return gpu.bdf
    gpus = ", ".join(f"{gpu.index} ({gpu.bdf})" for gpu in facts.gpus) or "none"
    return NoSuchDevice(f"there is no GPU {printable(typed, 40)!r}; the GPUs are: {gpus}")


def no_such_nic(rdma: RdmaFacts, typed: str) -> Refused:
    """Return that there is no such NIC, and which there are."""
    names = ", ".join(device.name for device in rdma.devices) or "none"
    return NoSuchDevice(f"there is no NIC {printable(typed, 40)!r}; the NICs are: {names}")
