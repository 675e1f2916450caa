"""Loading kernel modules: those that this node's path needs, in order, or one that is asked for by name."""

from __future__ import annotations

from collections.abc import Collection

from probes.base.plan import Plan, Step, instruction, sentences
from probes.base.unknown import Maybe, Unknown, known
from probes.facts.kernel.modules import ModuleFacts
from probes.plans.obstacles import absent_needs, bar_of, refused_before
from probes.queries.module_need import Need, need_of_peermem
from probes.queries.modules import (
    PEERMEM,
    gpu_functions,
    has_efa_only,
    is_present,
    mlx4_functions,
    mlx5_functions,
    module_of,
    ofed_numbers,
    ofed_of,
    peer_nics,
)
from probes.snapshot.examination import Examination

_RDMA_MODULES, _MLX4_MODULES = ("mlx5_core", "mlx5_ib"), ("mlx4_core", "mlx4_ib")
_GPU_MODULES = ("nvidia", "nvidia_uvm")
_LEGACY_OFED = (5, 0)  # the last that needs peerdirect_support=1
RUNNING_JOBS = "running jobs keep their current path until they restart"


def path_modules(examination: Examination) -> Maybe[tuple[str, ...]]:
    """What this node's path from NIC to GPU memory needs, in load order; nvidia_peermem as far as needed."""
    names: list[str] = []
    rdma: tuple[str, ...] = _RDMA_MODULES
    needs = _depends_of(examination, "mlx5_ib")
    if needs and "ib_uverbs" not in needs:
        rdma = (*rdma, "ib_uverbs")  # old kernels' mlx5_ib does without it, programs do not
    concerned = (
        (_MLX4_MODULES, mlx4_functions(examination)),
        (rdma, mlx5_functions(examination)),
        (_GPU_MODULES, gpu_functions(examination)),
    )
    for modules, devices in concerned:
        if isinstance(devices, Unknown):
            return devices
        names += modules if devices else ()
    return (*names, PEERMEM) if wants_peermem(examination) is True else tuple(names)


def _depends_of(examination: Examination, name: str) -> tuple[str, ...]:
    module = module_of(examination, name)
    return () if isinstance(module, Unknown) else known(module.depends, ())


def wants_peermem(examination: Examination) -> Maybe[bool]:
    """Whether nvidia_peermem is of this node's path: DMA-BUF cannot be used, or the boot is to load it."""
    need, module = need_of_peermem(examination), module_of(examination, PEERMEM)
    if not isinstance(need, Unknown):
        return need is not Need.NOT_NEEDED
    # Where the boot is to load it, it is wanted whatever turns out about DMA-BUF.
    if not isinstance(module, Unknown) and module.persistent is not None:
        return True
    return need


def load_modules(examination: Examination) -> Plan | str:
    """Load what is missing; a module that cannot be loaded is listed at the end with the reason."""
    wanted = path_modules(examination)
    if isinstance(wanted, Unknown):
        return f"it is unknown which devices this node has: {wanted}"
    if not wanted:
        return "no NVIDIA GPU and no mlx5 or mlx4 NIC here needs a module"
    steps: list[Step] = []
    barred: list[str] = []
    coming: set[str] = set()
    for name in wanted:
        module = module_of(examination, name)
        if isinstance(module, Unknown):
            return f"it is unknown whether {name} is loaded: {module}"
        if is_present(module) or name in coming:
            continue
        obstacle = bar_of(examination, name) or refused_before(examination, name)
        if obstacle:
            barred.append(f"{name} cannot be loaded: {obstacle}")
            continue
        steps.append(load_step(examination, name, coming))
        coming |= {name, *absent_needs(examination, name)}
    open_question = _open_question(examination)
    if not steps:
        return "; ".join(barred or [f"every module that this node needs is loaded: {', '.join(wanted)}"]) + (
            f"; {open_question}" if open_question else ""
        )
    return Plan(
        "Load missing modules",
        (*steps, *(instruction(reason) for reason in barred)),
        note=sentences(RUNNING_JOBS, open_question),
    )


def _open_question(examination: Examination) -> str:
    """What is to be known of nvidia_peermem before it can be said that nothing is missing."""
    module, wanted = module_of(examination, PEERMEM), wants_peermem(examination)
    if not isinstance(wanted, Unknown) or (not isinstance(module, Unknown) and is_present(module)):
        return ""
    return f"it is unknown whether nvidia_peermem is needed as well: {wanted.detail or wanted}"


def load_peermem(examination: Examination) -> Plan | str:
    """Load nvidia_peermem, even where DMA-BUF works."""
    module = module_of(examination, PEERMEM)
    if isinstance(module, Unknown):
        return f"it is unknown whether nvidia_peermem is loaded: {module}"
    if is_present(module):
        return "nvidia_peermem is loaded already"
    gpus, nics = gpu_functions(examination), peer_nics(examination)
    if not isinstance(gpus, Unknown) and not gpus:
        return "no NVIDIA GPU here"
    if has_efa_only(examination):
        return "the NICs here are EFA, which does not use nvidia_peermem"
    if not isinstance(nics, Unknown) and not nics:
        served = "that nvidia_peermem can serve" if examination.topology.nics else ""
        return f"no RDMA NIC here {served}".rstrip()
    obstacle = bar_of(examination, PEERMEM)
    if obstacle is not None:
        return f"nvidia_peermem cannot be loaded: {obstacle}"
    spare = need_of_peermem(examination) in (Need.NOT_NEEDED, Need.WANTED)
    # NCCL src/transport/net.cc: DMA-BUF wins where both can be used.
    takes = "NCCL keeps using DMA-BUF, which works here" if spare else ""
    return Plan(
        "Load nvidia_peermem", (load_step(examination, PEERMEM),), note=sentences(RUNNING_JOBS, takes)
    )


def load_plan(examination: Examination, name: str) -> Plan:
    """Load one module."""
    return Plan(f"Load {name}", (load_step(examination, name),), note=sentences(RUNNING_JOBS))


def load_step(examination: Examination, name: str, coming: Collection[str] = ()) -> Step:
    """Loads a module with modprobe; `coming`: what steps before bring.

    It is taken back by rmmod: `modprobe -r` would take what is left unused with it, the GPU driver too.
    """
    needs = absent_needs(examination, name)
    brought = [need for need in needs if need not in coming]
    ready = [need for need in needs if need in coming]
    before = f" once {', '.join(ready)} {'is' if len(ready) == 1 else 'are'} there" if ready else ""
    before += f", after {', '.join(brought)}, which it needs" if brought else ""
    return Step(
        f"Load {name}{before}: {_purpose(examination, name)}",
        ("modprobe", name, *peermem_options(examination, name)),
        undo=("rmmod", name),
    )


def _purpose(examination: Examination, name: str) -> str:
    facts = examination.node.modules
    rungs = facts.ladder if isinstance(facts, ModuleFacts) else ()
    return next((rung.why for rung in rungs if rung.module == name), "modprobe loads what it needs before it")


def peermem_options(examination: Examination, name: str = PEERMEM) -> tuple[str, ...]:
    """Return the options of nvidia_peermem: MLNX_OFED 5.0 and older need one (nvidia-peermem.c:55)."""
    ofed = ofed_of(examination)
    numbers = None if isinstance(ofed, Unknown) else ofed_numbers(ofed)
    legacy = numbers is not None and numbers[:2] <= _LEGACY_OFED
    return ("peerdirect_support=1",) if legacy and name == PEERMEM else ()
