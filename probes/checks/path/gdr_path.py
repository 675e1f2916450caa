"""Which path from a NIC to GPU memory is usable: DMA-BUF, nvidia-peermem, both or neither."""

from __future__ import annotations

from probes.base.plan import Plan, plan_or_none
from probes.base.unknown import Reason, Unknown
from probes.facts.gpudirect import GdrPath, GpuDirectFacts, PathState
from probes.plans.load_modules import load_peermem, refused_before
from probes.queries.evidence_list import RDMA_DEVICES
from probes.queries.finding import Area, Evidence, Outcome, Severity, end_with, found, need, passed
from probes.queries.module_need import DMABUF_MISSING, PEERMEM_MISSING
from probes.queries.modules import PEERMEM, no_gpu_or_nic, no_gpu_or_rdma_device, peer_nics
from probes.snapshot.examination import Examination

AREA = Area("path")


def _unmet(state: PathState) -> list[Evidence]:
    """Return the requirements that are not met, as evidence."""
    return [
        Evidence(requirement.evidence.partition(": ")[0], requirement.lack or requirement.name)
        for requirement in state.requirements
        if not isinstance(requirement.met, Unknown) and not requirement.met
    ]


@AREA.check(
    "no-gdr-path",
    Severity.CRITICAL,
    "No path between NICs and GPU memory is usable",
    "NVIDIA GPUDirect RDMA manual, https://docs.nvidia.com/cuda/gpudirect-rdma/",
    ok="A path between NICs and GPU memory is usable",
    impact="NCCL copies every message through host memory: more latency, and less bandwidth on fast NICs.",
    part_of=(
        *("nvidia-not-loaded", "mlx5-core-not-loaded", "mlx4-core-not-loaded", "ib-core-not-loaded"),
        *("ib-uverbs-not-loaded", "mlx5-ib-not-loaded", "mlx4-ib-not-loaded", "gpu-too-old-for-gdr"),
        *DMABUF_MISSING,
        *PEERMEM_MISSING,
        *("dmabuf-gpu-too-old", "efa-not-loaded", "cxi-ss1-not-loaded", "cxi-user-not-loaded"),
        *("efa-peermem-unusable", "cxi-without-gpu-support"),
    ),
)
def no_gdr_path(examination: Examination) -> Outcome:
    """Find a node on which neither path is usable."""
    if no_gpu_or_nic(examination) is not None:
        end_with(no_gpu_or_rdma_device(examination))
    rdma = examination.node.rdma
    if isinstance(rdma, Unknown) and rdma.reason is Reason.NOT_YET:
        need(rdma, RDMA_DEVICES)  # they decide which paths there are
    direct = need(examination.node.gpudirect, "the state of GPUDirect")
    if direct.by_design:
        return passed(Evidence("libcuda", f"not applicable by design: {direct.by_design}"))
    states: tuple[PathState, ...] = (direct.dmabuf, direct.peermem)
    if direct.peermem.path is GdrPath.CXI:  # libfabric hands DMA-BUFs to the driver itself
        states = (direct.peermem,)
    elif direct.peermem.path is GdrPath.PEERMEM and peer_nics(examination) == ():
        states = (direct.dmabuf,)  # no NIC here could use nvidia_peermem
    ways = " or ".join(state.path.value for state in states)
    usable = [state.path.value for state in states if need(state.usable, f"the state of {state.path.value}")]
    if usable:
        return passed(Evidence("usable paths", ", ".join(usable)))
    reasons = dict.fromkeys(evidence.value for state in states for evidence in _unmet(state)[:1])
    return found(
        f"A NIC reaches GPU memory through {ways}, but {', and '.join(reasons)}.",
        *(evidence for state in states for evidence in _unmet(state)),
        fix=_load_peermem(examination, direct),
    )


def _load_peermem(examination: Examination, direct: GpuDirectFacts) -> Plan | None:
    """Return the plan that loads nvidia_peermem; None where more is missing, or the kernel refused it."""
    own = direct.peermem
    if own.path is not GdrPath.PEERMEM or len(_unmet(own)) != 1 or refused_before(examination, PEERMEM):
        return None
    return plan_or_none(load_peermem(examination))
