"""What somebody wants to have measured, before it is known whether this node can."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from probes.facts.system.tool_names import PERFTEST


class Mode(Enum):
    """Where the two ends of an RDMA test are."""

    LOOPBACK = "loopback"  # both here, over one port or between two
    SERVER = "server"  # here, waiting for somebody at the peer
    CLIENT = "client"  # here, to a server that somebody has started at the peer
    BOTH_ENDS = "both ends"  # client here, server at the peer, started by SSH


class MemoryPath(Enum):
    """Whose memory the NIC reaches, and how."""

    BEST = "best"  # GPU memory by the path that this node would use
    HOST = "host"
    PEERMEM = "peermem"
    DMABUF = "dmabuf"
    COMPARE = "compare"  # host memory, nvidia-peermem and DMA-BUF, one after another


class Scope(Enum):
    """Which GPU–NIC pairs."""

    PAIR = "pair"
    SWEEP = "sweep"  # every GPU with its best NIC
    MATRIX = "matrix"  # every GPU with every NIC


@dataclass(frozen=True)
class Request:
    """One wish; None: what fits this node."""

    tool: str = PERFTEST[0]  # of TEST_TOOLS
    setup: Mode = Mode.LOOPBACK
    scope: Scope = Scope.PAIR
    memory: MemoryPath = MemoryPath.BEST
    gpu: str | None = None  # BDF; None: the first
    nic: str | None = None  # RDMA device; None: the GPU's nearest
    # Loopback: to another device of this node; both ends: the peer's. None: the same.
    far_nic: str | None = None
    peer: str = ""  # host name or address, with SSH also user@host
    size_bytes: int | None = None
    all_sizes: bool = False
    duration_s: int = 10
    queue_pairs: int = 1
    is_bidirectional: bool = False
    binds: bool = True  # CPU and memory to the NIC's NUMA node, where numactl can; False: to none
    tcp_port: int | None = None  # None: one that is free here
    over_network: bool = False  # nccl-tests: without NVLink and shared memory, so that the NICs carry it
