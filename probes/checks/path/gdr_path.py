"""Which path from NIC to GPU memory can be used: DMA-BUF, nvidia-peermem, both or neither."""

from __future__ import annotations

from probes.base.plan import Plan, plan_or_none
from probes.base.unknown import Unknown
from probes.facts.gpudirect import GpuDirectFacts, PathState
from probes.plans.load_modules import load_peermem, refused_before
from probes.queries.finding import Area, Evidence, Outcome, Severity, found, passed, unknown_without
from probes.queries.module_need import DMABUF_MISSING, PEERMEM_MISSING
from probes.queries.modules import PEERMEM, no_gpu_or_nic, no_gpu_or_rdma_device
from probes.snapshot.examination import Examination

AREA = Area("path")


def _lacking(state: PathState) -> list[Evidence]:
    """List the requirements that are not met, with where that was seen."""
    return [
        Evidence(one.evidence.partition(": ")[0], one.lack or one.name)
        for one in state.requirements
        if not isinstance(one.met, Unknown) and not one.met
    ]


@AREA.check(
    "no-gdr-path",
    Severity.CRITICAL,
    "Neither DMA-BUF nor nvidia-peermem can be used",
    "NVIDIA GPUDirect RDMA manual, https://docs.nvidia.com/cuda/gpudirect-rdma/",
    ok="A path between NICs and GPU memory can be used",
    impact="NCCL copies every message through host memory: more latency, and less bandwidth on fast NICs.",
    part_of=(
        *("nvidia-not-loaded", "mlx5-core-not-loaded", "mlx4-core-not-loaded", "ib-core-not-loaded"),
        *("ib-uverbs-not-loaded", "mlx5-ib-not-loaded", "mlx4-ib-not-loaded", "gpu-too-old-for-gdr"),
        *DMABUF_MISSING,
        *PEERMEM_MISSING,
        "dmabuf-gpu-too-old",
    ),
)
def no_gdr_path(examination: Examination) -> Outcome:
    """Find a node on which neither path can be used."""
    aside = no_gpu_or_rdma_device(examination)
    if aside is not None and no_gpu_or_nic(examination) is not None:
        return aside
    direct = examination.node.gpudirect
    if isinstance(direct, Unknown):
        return unknown_without("the state of GPUDirect", direct)
    if direct.by_design:
        return passed(Evidence("libcuda", f"not applicable by design: {direct.by_design}"))
    states = (direct.dmabuf, direct.peermem)
    for state in states:
        if isinstance(state.usable, Unknown):
            return unknown_without(f"the state of {state.path.value}", state.usable)
    usable = [state.path.value for state in states if state.usable]
    if usable:
        return passed(Evidence("paths that can be used", ", ".join(usable)))
    lacks = [evidence.value for state in states for evidence in _lacking(state)[:1]]
    return found(
        f"A NIC reaches GPU memory by DMA-BUF or through nvidia-peermem. {'; '.join(dict.fromkeys(lacks))}.",
        *(evidence for state in states for evidence in _lacking(state)),
        fix=_load_peermem(examination, direct),
    )


def _load_peermem(examination: Examination, direct: GpuDirectFacts) -> Plan | None:
    """Load nvidia_peermem, where only that is missing and the kernel has not refused it before."""
    if len(_lacking(direct.peermem)) != 1 or refused_before(examination, PEERMEM):
        return None
    return plan_or_none(load_peermem(examination))
