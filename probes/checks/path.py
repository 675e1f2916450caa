"""Which way from NIC to GPU memory can be used: DMA-BUF, nvidia-peermem, both or neither."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.module_facts import PEERMEM, no_ends, no_pair
from probes.examination import Examination
from probes.gpudirect import GpuDirectFacts, PathState
from probes.plan import Plan, plan_or_none
from probes.plans.loading import load_peermem
from probes.plans.obstacles import refused_before
from probes.unknown import Unknown

AREA = Area("path")


def _lacking(state: PathState) -> list[Evidence]:
    """The requirements that are not met, with where that was seen."""
    return [
        Evidence(one.evidence.partition(": ")[0], one.lack or one.name)
        for one in state.requirements
        if not isinstance(one.met, Unknown) and not one.met
    ]


@AREA.check(
    "no-gdr-path",
    Severity.CRITICAL,
    "neither DMA-BUF nor nvidia-peermem can be used: NCCL copies through host memory",
    "NVIDIA GPUDirect RDMA manual, https://docs.nvidia.com/cuda/gpudirect-rdma/",
)
def no_gdr_path(examination: Examination) -> Outcome:
    """Both ways are barred."""
    aside = no_ends(examination)
    if aside is not None and no_pair(examination) is not None:
        return aside
    direct = examination.node.gpudirect
    if isinstance(direct, Unknown):
        return unsure(f"what GPUDirect needs could not be read: {direct}")
    states = (direct.dmabuf, direct.peermem)
    for state in states:
        if isinstance(state.usable, Unknown):
            return unsure(f"whether {state.path.value} can be used is unknown: {state.usable}")
    usable = [state.path.value for state in states if state.usable]
    if usable:
        return passed(Evidence("paths that can be used", ", ".join(usable)))
    return found(
        "a NIC can reach GPU memory by DMA-BUF or through nvidia-peermem, and this node has neither",
        *(evidence for state in states for evidence in _lacking(state)),
        fix=_load_peermem(examination, direct),
    )


def _load_peermem(examination: Examination, direct: GpuDirectFacts) -> Plan | None:
    """Load nvidia_peermem, where only that is missing and the kernel has not refused it before."""
    if len(_lacking(direct.peermem)) != 1 or refused_before(examination, PEERMEM):
        return None
    return plan_or_none(load_peermem(examination))
