"""The one line on top: is GPUDirect RDMA working here, by which path, and if not, the first reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from probes.gpudirect import GdrPath
from probes.node import Node
from probes.rates import Reading
from probes.topology import Topology


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


def judge(node: Node, topology: Topology, reading: Reading | None) -> Verdict:
    """The verdict of one node at one moment."""
    raise NotImplementedError
