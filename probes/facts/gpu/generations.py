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
    first_branch: int = 0  # of the driver, whose list of GPUs has them; 0: each that gdrtop meets
    nvlink_gbps: float = 200.0  # of a link, each way
    first_nccl: tuple[int, ...] = ()  # whose release supports it; (): each that gdrtop meets
    first_cuda: tuple[int, ...] = ()  # whose compiler writes code that it runs, not only PTX; (): each
    models: tuple[str, ...] = ()  # words of their names, before a driver says the capability


# GPUDirect RDMA: from Kepler on (its manual). DMA-BUF needs the open kernel modules, which support Turing and
# newer (their README). NCCL sends from the memory of older GPUs than Ampere only with NVLink
# (src/graph/paths.cc); NVLink SHARP needs the NVSwitch of Hopper. NVLink: NVIDIA's white papers. Branches:
# src/nvidia/generated/g_nv_name_released.h of the open modules by tag (B200 in 570.86.15, B300 and GB300 in
# 580.82.07, GB10 in 580.94.13); 595.45.04 does not know Rubin.
# NCCL: the targets in makefiles/common.mk of 2.7.3 (sm_80), 2.15.1 (sm_90) and 2.25.1 (sm_100, sm_120); its
# release notes of 2.25.1 and 2.32.3 (sm107). CUDA: NVIDIA's "CUDA Toolkit, Driver, and Architecture Matrix";
# code for 10.0 runs on 10.3 and 10.7, that for 12.0 on 12.1 ("Blackwell Compatibility Guide").
GENERATIONS = (
    KEPLER := GpuGeneration("Kepler", (3, 0)),
    TURING := GpuGeneration("Turing", (7, 5)),
    AMPERE := GpuGeneration("Ampere", (8, 0), 0, 200.0, (2, 7, 3), (11, 0)),
    HOPPER := GpuGeneration("Hopper", (9, 0), 0, 200.0, (2, 15, 1), (11, 8)),
    BLACKWELL := GpuGeneration("Blackwell", (10, 0), 570, 400.0, (2, 25, 1), (12, 8), ("B200", "GB200")),
    GpuGeneration("Blackwell Ultra", (10, 3), 580, 400.0, (2, 25, 1), (12, 8), ("B300", "GB300")),
    GpuGeneration("Rubin", (10, 7), 610, 400.0, (2, 32, 3), (12, 8), ("Rubin",)),
    GpuGeneration("RTX Blackwell", (12, 0), 570, 200.0, (2, 25, 1), (12, 8)),
    GpuGeneration("GB10", (12, 1), 580, 200.0, (2, 25, 1), (12, 8), ("GB10",)),
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


def is_model(name: str, *models: str) -> bool:
    """Return whether a GPU's name has one of the models as a word: "NVIDIA GB200" is no B200."""
    return any(re.search(rf"\b{re.escape(model)}\b", name) for model in models)


def generation_named(name: str) -> GpuGeneration | None:
    """Return the generation of a GPU's name; None: it names none of the table's models."""
    return next((row for row in GENERATIONS if is_model(name, *row.models)), None)


def without_gdr(name: str) -> str:
    """Return why a GPU of this name can never use GPUDirect RDMA, as a sentence; "" if nothing is known."""
    return next((reason for pattern, reason in _BY_DESIGN if pattern.search(name)), "")
