"""GPU memory of a job that nvidia_peermem cannot register."""

from __future__ import annotations

import re

from probes.base.plan import instruction
from probes.base.unknown import Unknown
from probes.facts.jobs.process_files import has_initialized_nvshmem
from probes.queries.finding import Area, Evidence, Outcome, Severity, need, passed
from probes.queries.jobs import (
    GDR_PATHS,
    JobSettings,
    conclude,
    job_plan,
    jobs_of,
    maps,
    usable_paths,
    values_of,
)
from probes.snapshot.examination import Examination

AREA = Area("nccl")

# PYTORCH_ALLOC_CONF is the name since PyTorch 2.9; the older one still works.
_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_EXPANDABLE = re.compile(r"(?:^|,)\s*expandable_segments\s*:\s*true\b", re.IGNORECASE)
_TENSORS_ONLY = "None for NCCL, which registers its own buffers. Registering tensors fails."
# Libraries that register the tensors of the program itself.
_REGISTER_TENSORS = ("libucp", "libfabric", "mooncake/engine")


def uses_expandable_segments(settings: JobSettings) -> str:
    """Return the variable that asks for expandable segments; "": none does."""
    return next((name for name in _VARIABLES if _EXPANDABLE.search(settings.get(name) or "")), "")


@AREA.check(
    "vmm-memory-with-peermem",
    Severity.WARNING,
    "A job uses expandable segments, which nvidia_peermem cannot register",
    "https://github.com/pytorch/pytorch/issues/153688; https://github.com/kvcache-ai/Mooncake/issues/351",
    ok="No job uses expandable segments, or DMA-BUF registers them",
    impact="Registering these tensors fails with “Bad address” (errno 14).",
)
def vmm_memory_with_peermem(examination: Examination) -> Outcome:
    """Find expandable_segments:True in jobs where nvidia_peermem is the only path to GPU memory.

    A note for jobs without a library that registers tensors: NCCL registers its own buffers.
    """
    jobs = jobs_of(examination)

    def wrong(_: JobSettings, value: str) -> str | None:
        return "memory in segments that grow" if _EXPANDABLE.search(value) else None

    evidence = [line for name in _VARIABLES for line in values_of(examination, name, wrong)]
    if not evidence:
        return conclude(jobs, (), "")
    dmabuf, peermem = usable_paths(examination)
    if need(dmabuf, GDR_PATHS):
        return passed(*evidence[:1], Evidence("gdrtop check --only no-gdr-path", "DMA-BUF is usable"))
    if not need(peermem, GDR_PATHS):
        return passed(*evidence[:1], Evidence("gdrtop check --only no-gdr-path", "no path to GPU memory"))
    registers = any(
        isinstance(process.libraries, Unknown)
        or has_initialized_nvshmem(process.libraries)
        or any(maps(process, library) for library in _REGISTER_TENSORS)
        for process in jobs.processes
    )
    return conclude(
        jobs,
        evidence,
        "CUDA's virtual memory management provides such memory, and nvidia_peermem is the only path to GPU"
        " memory on this node.",
        fix=job_plan(
            "Let NICs register the job's memory",
            instruction("Use DMA-BUF instead, which registers such memory: install the open kernel modules"),
            "Or remove expandable_segments:True from PYTORCH_CUDA_ALLOC_CONF in the job script or the image",
        ),
        severity=None if registers else Severity.NOTE,
        impact="" if registers else _TENSORS_ONLY,
    )
