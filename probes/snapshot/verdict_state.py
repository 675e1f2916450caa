"""The verdict as data, and what the requirements of the paths say before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from probes.base.frozen import frozen
from probes.facts.gpudirect import GdrPath


class State(Enum):
    """The word of the verdict."""

    ACTIVE = "ACTIVE"  # usable, in use now, and no finding degrades it
    READY = "READY"  # the same, not in use now
    DEGRADED = "DEGRADED"  # usable, but a finding takes GPUs away or costs bandwidth
    BROKEN = "BROKEN"  # no usable path, or no program here can use one
    UNKNOWN = "UNKNOWN"  # what decides could not be read
    NOT_APPLICABLE = "NOT APPLICABLE"  # no NVIDIA GPU, no RDMA NIC, or hardware that cannot do it by design


@frozen
class Usability:
    """What the requirements of the paths say of a node; its findings turn this into the verdict.

    The state is never DEGRADED: only a finding degrades a node.
    """

    state: State
    path: GdrPath | None
    reason: str  # what shows the use, or the requirement that is unmet or unknown; no full stop at the end
    gpus: tuple[str, ...] = ()  # GPUs that could use GPUDirect RDMA, by BDF
    nics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the NICs that serve each GPU
    unserved: Mapping[str, str] = field(default_factory=dict)  # GPU -> why no NIC serves it, as a clause


@frozen
class Verdict:
    """The word, the path, the counts of GPUs and NICs that no finding takes away, and the first reason."""

    state: State
    path: GdrPath | None
    gpus_served: int  # GPUs that can use GPUDirect RDMA at NCCL's default level (PXB, or P2C with C2C)
    gpus: int
    reason: str  # one or two sentences without a full stop at the end; first the title of the first finding
    nics: int = 0  # NICs that serve these GPUs
    critical: int | None = None  # findings, those with the same cause counted once; None: not checked yet
    warnings: int | None = None
