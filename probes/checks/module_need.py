"""Which modules this node needs, nvidia_peermem above all, and what it costs that one is not loaded."""

from __future__ import annotations

from enum import Enum

from probes.checks.finding import Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.module_facts import (
    PEERMEM,
    gpu_functions,
    is_present,
    mlx5_functions,
    module_of,
    no_pair,
    state_seen,
)
from probes.examination import Examination
from probes.modules import PROC_MODULES, KernelModule
from probes.plan import Plan
from probes.unknown import Maybe, Reason, Unknown

_GPU_MODULES = ("nvidia", "nvidia_uvm")
_RDMA_MODULES = ("ib_core", "ib_uverbs", "mlx5_core", "mlx5_ib")


class Need(Enum):
    """Whether this node has to have nvidia_peermem."""

    NEEDED = "DMA-BUF cannot be used"
    WANTED = "DMA-BUF can be used; the node is set up to load nvidia_peermem as well"
    NOT_NEEDED = "DMA-BUF can be used, or there is no pair of GPU and NIC"


def need_of_peermem(examination: Examination) -> Maybe[Need]:
    """Whether nvidia_peermem matters here; unknown where it is unknown whether DMA-BUF can be used."""
    if no_pair(examination) is not None:
        return Need.NOT_NEEDED
    direct, modules = examination.node.gpudirect, examination.node.modules
    if isinstance(direct, Unknown):
        return direct
    if direct.by_design:
        return Need.NOT_NEEDED
    if isinstance(modules, Unknown):
        return modules
    if direct.nic_dmabuf and all(answer is False for answer in direct.nic_dmabuf.values()):
        return Need.NEEDED  # whatever the GPUs' side will say once it is loaded
    for name in ("nvidia", "ib_uverbs", *(("mlx5_ib",) if _lacks_devices(examination) else ())):
        module = module_of(examination, name)
        if not isinstance(module, Unknown) and not is_present(module):
            return Unknown(Reason.NOT_THERE, PROC_MODULES, f"{name} has to be loaded before that can be said")
    if isinstance(direct.dmabuf.usable, Unknown):
        return direct.dmabuf.usable
    if not direct.dmabuf.usable:
        return Need.NEEDED
    return Need.NOT_NEEDED if modules.modules[PEERMEM].persistent is None else Need.WANTED


def _lacks_devices(examination: Examination) -> bool:
    """Whether there is no RDMA device that could have been asked for DMA-BUF."""
    rdma = examination.node.rdma
    return rdma.reason is Reason.NOT_THERE if isinstance(rdma, Unknown) else not rdma.devices


def peermem_fault(
    examination: Examination, cause: str, *evidence: Evidence, fix: Plan | None = None
) -> Outcome:
    """A fault that keeps nvidia_peermem out: critical, a note, or none, by whether the node needs it."""
    need = need_of_peermem(examination)
    if isinstance(need, Unknown):
        return unsure(f"whether nvidia_peermem is needed depends on DMA-BUF, and that is unknown: {need}")
    if need is Need.NOT_NEEDED:
        return passed(Evidence("gdrtop check --only no-gdr-path", f"not needed: {need.value}"), *evidence)
    severity = Severity.CRITICAL if need is Need.NEEDED else Severity.NOTE
    if need is Need.WANTED:
        cause += "; GPUDirect RDMA works without it, by DMA-BUF"
    return found(cause, *evidence, fix=fix, severity=severity, devices=(PEERMEM,))


def absent_peermem(examination: Examination) -> KernelModule | Outcome:
    """nvidia_peermem where neither it nor its predecessor is loaded; else the outcome that says so."""
    aside = no_pair(examination)
    if aside is not None:
        return aside
    module, older = module_of(examination, PEERMEM), module_of(examination, "nv_peer_mem")
    if isinstance(module, Unknown):
        return unsure(f"whether nvidia_peermem is loaded is unknown: {module}")
    for one in (module, older):
        if not isinstance(one, Unknown) and is_present(one):
            return passed(state_seen(one))
    return module


def loaded_peermem(examination: Examination) -> KernelModule | Outcome:
    """nvidia_peermem where it is loaded; else the outcome that says so."""
    aside = no_pair(examination)
    if aside is not None:
        return aside
    module = module_of(examination, PEERMEM)
    if isinstance(module, Unknown):
        return unsure(f"whether nvidia_peermem is loaded is unknown: {module}")
    if not is_present(module):
        return passed(state_seen(module))
    return module


def missing_modules(examination: Examination) -> Maybe[tuple[str, ...]]:
    """The modules that are not loaded though this node needs them; nvidia_peermem as far as it is needed."""
    absent = []
    concerned = ((_GPU_MODULES, gpu_functions(examination)), (_RDMA_MODULES, mlx5_functions(examination)))
    for names, devices in concerned:
        if isinstance(devices, Unknown):
            return devices
        absent += list(names) if devices else []
    need = need_of_peermem(examination)
    if need is not Need.NOT_NEEDED:
        absent.append(PEERMEM)
    left = []
    for name in absent:
        module = module_of(examination, name)
        if isinstance(module, Unknown):
            return module
        if not is_present(module):
            left.append(name)
    return tuple(left)


def cost_of_missing(examination: Examination, names: tuple[str, ...]) -> Severity:
    """What it costs that these are not loaded."""
    if any(name != PEERMEM for name in names):
        return Severity.CRITICAL
    need = need_of_peermem(examination)
    if isinstance(need, Unknown):
        return Severity.WARNING
    return Severity.CRITICAL if need is Need.NEEDED else Severity.NOTE
