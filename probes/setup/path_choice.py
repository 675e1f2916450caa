"""Which path a node should use, with what each path requires and whether the node has it."""

from __future__ import annotations

from probes.base.frozen import frozen
from probes.base.unknown import Unknown
from probes.facts.gpudirect import GdrPath, PathState
from probes.queries.finding import Evidence
from probes.queries.module_need import dmabuf_comes_first
from probes.queries.modules import PEERMEM, boot_loaders, module_of, no_gpu_or_rdma_device
from probes.snapshot.examination import Examination


@frozen
class PathChoice:
    """The recommended path and its reason; None: no path can work on this node."""

    recommended: GdrPath | None
    reason: str
    paths: tuple[PathState, ...]  # with the requirements and their evidence; () where they are unknown
    is_impossible: bool = False  # by design or without the devices; False: unknown, or a path was recommended
    old_peermem: tuple[Evidence, ...] = ()  # what loads nvidia_peermem at boot though DMA-BUF is usable


def choose_path(examination: Examination) -> PathChoice:
    """Return the path that NVIDIA recommends for what this node has: DMA-BUF where it can work."""
    direct = examination.node.gpudirect
    if isinstance(direct, Unknown):
        return PathChoice(None, f"the state of GPUDirect RDMA is unknown: {direct}", ())
    if direct.peermem.path is GdrPath.CXI:
        return _of_slingshot(direct.peermem, direct.by_design)
    paths = (direct.dmabuf, direct.peermem)
    absent = no_gpu_or_rdma_device(examination)
    if absent is not None:
        reason = absent.cause or "; ".join(evidence.value for evidence in absent.evidence)
        return PathChoice(None, reason, paths, is_impossible=True)
    if direct.by_design:
        return PathChoice(None, direct.by_design, paths, is_impossible=True)
    if direct.peermem.path is GdrPath.EFA:
        return PathChoice(*_of_efa(direct.dmabuf, direct.peermem), paths)
    if direct.dmabuf.usable is True:
        reason = "every requirement of DMA-BUF is met"
        return PathChoice(GdrPath.DMABUF, reason, paths, old_peermem=_old_peermem(examination))
    if direct.peermem.usable is True:
        reason = f"DMA-BUF is not usable ({_missing(direct.dmabuf)}), and nvidia_peermem is"
        return PathChoice(GdrPath.PEERMEM, reason, paths)
    if dmabuf_comes_first(examination):
        reason = f"NVIDIA recommends DMA-BUF; missing here: {_missing(direct.dmabuf)}"
        return PathChoice(GdrPath.DMABUF, reason, paths)
    reason = "DMA-BUF would need another driver or another NIC; nvidia_peermem works with what is installed"
    return PathChoice(GdrPath.PEERMEM, reason, paths)


def _old_peermem(examination: Examination) -> tuple[Evidence, ...]:
    module = module_of(examination, PEERMEM)
    return () if isinstance(module, Unknown) else boot_loaders(examination, module)


def _of_slingshot(own: PathState, by_design: str) -> PathChoice:
    """Return the only path of Slingshot NICs, which have no verbs."""
    if by_design:
        return PathChoice(None, by_design, (own,), is_impossible=True)
    lacking = f"missing here: {_missing(own)}"
    reason = "Slingshot NICs have no verbs; libfabric registers GPU memory with the cxi driver"
    return PathChoice(GdrPath.CXI, reason if own.usable is True else f"{reason}; {lacking}", (own,))


def _of_efa(dmabuf: PathState, own: PathState) -> tuple[GdrPath, str]:
    if dmabuf.usable is True or own.usable is not True:
        return GdrPath.DMABUF, "the EFA driver registers GPU memory via DMA-BUF"
    return GdrPath.EFA, "the EFA driver registers GPU memory with its own module"


def _missing(path: PathState) -> str:
    """Return the requirements that are not met; else those that are unknown."""
    lacking = [row.lack or row.name for row in path.requirements if row.met is False]
    unknown = [f"{row.name} is unknown" for row in path.requirements if isinstance(row.met, Unknown)]
    return "; ".join(lacking[:3] or unknown[:3]) or "nothing"
