"""A program of a simulated node that uses RDMA: a rank of a training job, a storage client."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

PEERMEM = "nvidia_peermem"
PEERMEM_REGION_BYTES = 64 << 20  # the job sets NCCL_BUFFSIZE


class Via(Enum):
    """How a program's data reaches the network."""

    PEERMEM = "peermem"
    DMABUF = "DMA-BUF"
    PLUGIN = "network plugin"  # straight from GPU memory, without verbs
    HOST = "host memory"  # a rank copies GPU memory through it
    TCP = "TCP"
    NONE = "none"  # it has opened the NICs, and has no queue pairs


@dataclass
class Program:
    """One process; times in seconds since the node started."""

    pid: int
    gpu: int | None  # number
    nics: tuple[str, ...]  # devices with its queue pairs
    opened: tuple[str, ...]  # devices that it has opened
    via: Via
    slot: int  # its rank on this node
    is_nccl: bool = True
    since: float = 0.0
    stopped_at: float | None = None  # SIGSTOP
    behind_at: float | None = None  # from then on it launches no collectives
    logged_via: Via | None = None  # the path in its log; None: `via`
    logged_nics: tuple[str, ...] | None = None  # the NICs that its log lists; None: all compute NICs
    logged_lines: tuple[str, ...] = ()  # more INFO lines at its start
    logged_warnings: tuple[str, ...] = ()  # WARN lines at the end, with file and line

    @property
    def path_in_log(self) -> Via:
        """The path that its log shows."""
        return self.logged_via or self.via

    def is_stopped(self, seconds: float) -> bool:
        """Say whether the process is stopped at a moment."""
        return self.stopped_at is not None and seconds >= self.stopped_at
