"""The generations of NVIDIA GPUs, one row each: what gdrtop concludes from a compute capability or a name."""

from __future__ import annotations

import re

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Unknown


@frozen
class GpuGeneration:
    """GPUs from one compute capability on, up to the next row's."""

    name: str
    capability: tuple[int, int]
    first_branch: int = 0  # of the open driver whose source knows the chip; 0: each that gdrtop meets
    nvlink_gbps: float = 200.0  # of a link, each way


# GPUDirect RDMA: from Kepler on (its manual). DMA-BUF needs the open kernel modules, which support Turing and
# newer (their README). NCCL sends from the memory of older GPUs than Ampere only with NVLink
# (src/graph/paths.cc); NVLink SHARP needs the NVSwitch of Hopper. NVLink: NVIDIA's white papers. Branches:
# gb100, gb110, gb202 and gb20b in src/common/inc/swref/published/blackwell; 595.45.04 does not know Rubin.
GENERATIONS = (
    KEPLER := GpuGeneration("Kepler", (3, 0)),
    TURING := GpuGeneration("Turing", (7, 5)),
    AMPERE := GpuGeneration("Ampere", (8, 0)),
    HOPPER := GpuGeneration("Hopper", (9, 0)),
    BLACKWELL := GpuGeneration("Blackwell", (10, 0), 560, 400.0),
    GpuGeneration("Blackwell Ultra", (10, 3), 575, 400.0),
    GpuGeneration("Rubin", (10, 7), 610, 400.0),
    GpuGeneration("RTX Blackwell", (12, 0), 570),
    GpuGeneration("GB10", (12, 1), 575),
)
GB10 = re.compile(r"\bGB10\b")
"""In the names of GPUs that use the CPU's memory (DGX Spark)."""
_BY_DESIGN = (
    (re.compile(r"geforce", re.IGNORECASE), "GeForce GPUs do not support GPUDirect RDMA"),
    (GB10, "GB10 (DGX Spark) does not support GPUDirect RDMA"),
)


def generation_of(capability: tuple[int, int]) -> GpuGeneration | None:
    """Return the generation of a compute capability; None: older than all rows."""
    return next((row for row in reversed(GENERATIONS) if row.capability <= capability), None)


def is_before(capability: Maybe[tuple[int, int]], generation: GpuGeneration) -> bool:
    """Return whether a GPU is known to be older than a generation."""
    return not isinstance(capability, Unknown) and capability < generation.capability


def without_gdr(name: str) -> str:
    """Return why a GPU of this name can never use GPUDirect RDMA, as a sentence; "" if nothing is known."""
    return next((reason for pattern, reason in _BY_DESIGN if pattern.search(name)), "")
