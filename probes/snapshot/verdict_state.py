"""The verdict as data."""

from __future__ import annotations

from enum import Enum

from probes.base.frozen import dataclass
from probes.facts.gpudirect import GdrPath


class State(Enum):
    """The word of the verdict."""

    ACTIVE = "ACTIVE"  # usable, in use now, and nothing on the data path is below what the hardware can do
    READY = "READY"  # the same, not in use now
    DEGRADED = "DEGRADED"  # usable, but not for every GPU, or something on the data path costs bandwidth
    BROKEN = "BROKEN"  # no usable path
    UNKNOWN = "UNKNOWN"  # what decides could not be read
    NOT_APPLICABLE = "NOT APPLICABLE"  # no NVIDIA GPU, no RDMA NIC, or hardware that cannot do it by design


@dataclass(frozen=True)
class Verdict:
    """The word, the path, the number of GPUs, and the first reason."""

    state: State
    path: GdrPath | None
    gpus_served: int  # GPUs that can use GPUDirect RDMA at NCCL's default level (PXB, or P2C with C2C)
    gpus: int
    reason: str  # one or two sentences without a full stop at the end
    nics: int = 0  # NICs that serve these GPUs
    critical: int | None = None  # findings, those with the same cause counted once; None: not checked yet
    warnings: int | None = None
