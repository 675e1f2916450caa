"""What the user wants to measure, before gdrtop knows whether this node can."""

from __future__ import annotations

from enum import Enum

from probes.base.frozen import frozen
from probes.facts.system.tool_names import PERFTEST

DEFAULT_BYTES = 1 << 20
"""Larger than 64 KiB, above which the table of a healthy link is flat, and small enough for any BAR1."""


class Mode(Enum):
    """Where the two ends of an RDMA test run."""

    LOOPBACK = "loopback"  # both on this node, over one port or between two
    SERVER = "server"  # the server here, waiting for a client on the peer
    CLIENT = "client"  # the client here; its server on the peer is already running
    BOTH_ENDS = "both ends"  # client here, server on the peer, started by SSH


class MemoryPath(Enum):
    """Which memory the NIC accesses, and how."""

    BEST = "best"  # GPU memory by the path that this node would use
    HOST = "host"
    PEERMEM = "peermem"
    DMABUF = "dmabuf"
    STAGED = "staged"  # nccl-tests: copied through host memory, as without GPUDirect RDMA
    COMPARE = "compare"  # host memory, nvidia-peermem, DMA-BUF; nccl-tests: GPUDirect RDMA, then staged


class Scope(Enum):
    """Which GPU–NIC pairs."""

    PAIR = "pair"
    SWEEP = "sweep"  # every GPU with its best NIC
    MATRIX = "matrix"  # every GPU with every NIC


@frozen
class Request:
    """The test that the user wants; None means what fits this node.

    The command line and the dashboard take their defaults from here.
    """

    tool: str = PERFTEST[0]  # of TEST_TOOLS
    setup: Mode = Mode.LOOPBACK
    scope: Scope = Scope.PAIR
    memory: MemoryPath = MemoryPath.BEST
    gpu: str | None = None  # BDF; None: the first
    nic: str | None = None  # RDMA device; None: the GPU's nearest
    far_nic: str | None = None  # the other end's RDMA device; None: the same port, or name
    peer: str = ""  # host name or address, with SSH also user@host
    size_bytes: int | None = None  # None: DEFAULT_BYTES, or the tool's own
    all_sizes: bool = False
    duration_s: int = 10
    queue_pairs: int = 1
    is_bidirectional: bool = False
    binds: bool = True  # CPU and memory to the NIC's NUMA node, if numactl can
    tcp_port: int | None = None  # None: one that is free here
    over_network: bool = False  # nccl-tests: without NVLink and shared memory, so that NCCL uses the NICs
