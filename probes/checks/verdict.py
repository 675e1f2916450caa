"""The one line on top: is GPUDirect RDMA working here, by which path, and if not, the first reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from probes.gpudirect import GdrPath, PathState
from probes.nccl_paths import Nccl
from probes.node import Node
from probes.rates import Reading
from probes.rdma import RdmaFacts
from probes.topology import Endpoint, Topology
from probes.unknown import Maybe, Reason, Unknown


class State(Enum):
    """The one word."""

    ACTIVE = "ACTIVE"  # ready, and memory regions are registered (refcnt or dma-buf attachments) now
    READY = "READY"
    DEGRADED = "DEGRADED"  # works, but not for every GPU or not on the best path
    BROKEN = "BROKEN"
    UNKNOWN = "UNKNOWN"  # what decides could not be read
    NOT_APPLICABLE = "NOT APPLICABLE"  # no NVIDIA GPU or no RDMA-capable NIC


@dataclass(frozen=True)
class Verdict:
    """The word, the path it holds by, for how many GPUs, and the first reason."""

    state: State
    path: GdrPath | None
    gpus_served: int  # GPUs with a usable NIC at NCCL's default GDR level (PXB, or P2C with C2C)
    gpus: int
    reason: str  # one sentence


# Distances at which NCCL uses GPUDirect RDMA unless told otherwise (paths.cc ncclTopoCheckGdr; P2C counts
# since 2.27 on GPUs with C2C, and by PXN the peer GPU's distance decides).
_NEAR = (Nccl.PIX, Nccl.PXB, Nccl.P2C, Nccl.PXN)


def is_active(node: Node, nic: str, reading: Reading | None) -> Maybe[bool]:
    """Whether a port of the NIC is ACTIVE, as last read; a NIC without an RDMA device is not."""
    if not isinstance(node.rdma, RdmaFacts):
        return False
    device = next((one for one in node.rdma.devices if one.name == nic), None)
    if device is None:
        return False
    unsure: Unknown | None = None
    for port in device.ports:
        state = reading.port_states.get((nic, port.number), port.state) if reading else port.state
        if isinstance(state, Unknown):
            unsure = state
        elif state == "ACTIVE":
            return True
    return False if unsure is None else unsure


def _lack(state: PathState) -> str:
    """The first requirement that is not met, else the first that is unknown, in words."""
    for one in state.requirements:
        if not isinstance(one.met, Unknown) and not one.met:
            return f"lacks {one.name}"
    for one in state.requirements:
        if isinstance(one.met, Unknown):
            return f"cannot tell: {one.name} ({one.met})"
    return ""


def _served(node: Node, topology: Topology, reading: Reading | None) -> list[Endpoint]:
    active = {nic.id for nic in topology.nics if is_active(node, nic.id, reading) is True}
    return [
        gpu
        for gpu in topology.gpus
        if any(
            nic in active and topology.path(gpu.id, nic).nccl in _NEAR for nic in topology.best_nics[gpu.id]
        )
    ]


def _not_applicable(node: Node, topology: Topology) -> Verdict | None:
    """No GPU or no NIC: nothing to judge. A bus that could not be read is no proof of that."""
    if isinstance(node.pci, Unknown) and node.pci.reason is not Reason.NOT_THERE:
        return Verdict(State.UNKNOWN, None, 0, 0, f"the PCI devices could not be read: {node.pci}")
    if topology.gpus and topology.nics:
        return None
    lacking = " and ".join(
        what for what, there in (("NVIDIA GPU", topology.gpus), ("RDMA NIC", topology.nics)) if not there
    )
    hint = "" if topology.gpus or topology.nics else "; try gdrtop --demo"
    return Verdict(State.NOT_APPLICABLE, None, 0, len(topology.gpus), f"no {lacking} on this node{hint}")


def judge(node: Node, topology: Topology, reading: Reading | None) -> Verdict:
    """The verdict of one node at one moment.

    refcnt 0 is no fault, nor is nvidia_peermem that is not loaded where DMA-BUF works.
    """
    nothing = _not_applicable(node, topology)
    if nothing is not None:
        return nothing
    count = len(topology.gpus)
    direct = node.gpudirect
    if isinstance(direct, Unknown):
        return Verdict(State.UNKNOWN, None, 0, count, f"the GPUDirect state could not be read: {direct}")
    served = _served(node, topology, reading)
    path = direct.preferred
    if path is None:
        unsure = next((s for s in (direct.dmabuf, direct.peermem) if isinstance(s.usable, Unknown)), None)
        if unsure is not None:
            return Verdict(State.UNKNOWN, None, len(served), count, f"{unsure.path.value}: {_lack(unsure)}")
        why = "; ".join(f"{state.path.value} {_lack(state)}" for state in (direct.dmabuf, direct.peermem))
        return Verdict(State.BROKEN, None, len(served), count, why)
    if len(served) < count:
        return Verdict(
            State.DEGRADED, path, len(served), count, _why_not_all(node, topology, reading, served)
        )
    refcnt = reading.peermem.refcnt if reading else Unknown(Reason.NOT_THERE)
    if not isinstance(refcnt, Unknown) and refcnt > 0:
        return Verdict(State.ACTIVE, GdrPath.PEERMEM, count, count, f"{refcnt} memory regions registered now")
    if direct.dmabuf_in_use is True:
        return Verdict(State.ACTIVE, GdrPath.DMABUF, count, count, "buffers are attached to NICs now")
    return Verdict(State.READY, path, count, count, "")


def _why_not_all(node: Node, topology: Topology, reading: Reading | None, served: list[Endpoint]) -> str:
    """What keeps the first of the GPUs that are not served from a NIC."""
    states = {nic.id: is_active(node, nic.id, reading) for nic in topology.nics}
    if not any(state is True for state in states.values()):
        unsure = next((state for state in states.values() if isinstance(state, Unknown)), None)
        return (
            f"no NIC is known to be ACTIVE: {unsure}" if unsure is not None else "no NIC has an ACTIVE port"
        )
    missing = next(gpu for gpu in topology.gpus if gpu not in served)
    nearest = next(nic for nic in topology.best_nics[missing.id] if states[nic] is True)
    word = topology.path(missing.id, nearest).nccl
    if isinstance(word, Unknown):
        return f"{missing.label} to {nearest}: {word}"
    return (
        f"{missing.label}'s nearest ACTIVE NIC {nearest} is {word.value} away: NCCL stops at PXB by default"
    )
