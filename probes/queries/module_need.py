"""Which modules this node needs, above all nvidia_peermem, and which finding explains that one is missing."""

from __future__ import annotations

from enum import Enum

from probes.base.plan import Plan
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpu.gpus import Flavour
from probes.facts.kernel.dkms import DRIVER_PACKAGES
from probes.facts.kernel.module_blockers import loads_nothing
from probes.facts.kernel.modules import PEER_MEMORY_SYMBOL, PROC_MODULES, KernelModule
from probes.queries.evidence_list import STAGED
from probes.queries.finding import Evidence, Outcome, Severity, found, passed, unknown, unknown_without
from probes.queries.modules import (
    DMABUF,
    MODULES,
    PEERMEM,
    file_of,
    gpu_functions,
    is_present,
    mlx4_functions,
    mlx5_functions,
    mlx_functions,
    module_of,
    no_peermem_pair,
    peer_nics,
    state_evidence,
)
from probes.snapshot.examination import Examination

GPU_MODULES = ("nvidia", "nvidia_uvm")
RDMA_MODULES = ("ib_core", "ib_uverbs")
MLX5_MODULES, MLX4_MODULES = ("mlx5_core", "mlx5_ib"), ("mlx4_core", "mlx4_ib")
OLDEST_OPEN_GPU = (7, 5)  # Turing: the open kernel modules serve nothing older

# Findings that name why nvidia_peermem cannot be loaded; peermem-not-loaded is the symptom of each.
PEERMEM_REASONS = (
    "nv-peer-mem-conflict",
    "peermem-symbol-version-mismatch-nvidia",
    "peermem-symbol-version-mismatch",
    "peermem-unknown-symbol-inbox-core",
    "peermem-parameter-invalid",
    "peermem-built-without-symbols",
)
PEERMEM_MISSING = (
    *PEERMEM_REASONS,
    "peermem-not-on-disk-old-driver",
    "peermem-not-on-disk-container",
    "peermem-not-on-disk-other-kernel",
    "peermem-not-on-disk",
    "boot-load-race",
    "peermem-lost-after-driver-update",
    "peermem-not-loaded",
)
DMABUF_MISSING = (
    "p2p-topology-refused-override",
    "dmabuf-driver-too-old",
    "dmabuf-needs-open-module",
    "dmabuf-kernel-too-old",
    "dmabuf-kernel-config",
    "dmabuf-nic-driver-lacks-support",
)
NOT_NEEDED_HERE = "None for jobs that use DMA-BUF. Programs without DMA-BUF support copy through host memory."
_FIRST = " has to be loaded before that can be said"


class Need(Enum):
    """Whether this node has to have nvidia_peermem."""

    NEEDED = "DMA-BUF is not usable"
    WANTED = "DMA-BUF is usable; the node is set up to load nvidia_peermem as well"
    NOT_NEEDED = "DMA-BUF is usable, or there is no GPU and NIC that could use nvidia_peermem"


def need_of_peermem(examination: Examination) -> Maybe[Need]:
    """Return whether nvidia_peermem matters here; unknown where it is unknown whether DMA-BUF is usable."""
    if no_peermem_pair(examination) is not None:
        return Need.NOT_NEEDED
    direct, modules = examination.node.gpudirect, examination.node.modules
    if isinstance(direct, Unknown):
        return direct
    if direct.by_design:
        return Need.NOT_NEEDED
    if isinstance(modules, Unknown):
        return modules
    if direct.nic_dmabuf and all(answer is False for answer in direct.nic_dmabuf.values()):
        return Need.NEEDED  # whatever the GPU driver says once it is loaded
    for name in ("nvidia", "ib_uverbs", *_nic_modules(examination)):
        module = module_of(examination, name)
        if not isinstance(module, Unknown) and not is_present(module):
            return Unknown(Reason.NOT_THERE, PROC_MODULES, f"{name}{_FIRST}")
    if isinstance(direct.dmabuf.usable, Unknown):
        return direct.dmabuf.usable
    if not direct.dmabuf.usable:
        return Need.NEEDED
    return Need.NOT_NEEDED if modules.modules[PEERMEM].persistent is None else Need.WANTED


def is_spare(examination: Examination) -> bool:
    """Return whether DMA-BUF is usable, so that what is wrong with nvidia_peermem is a note."""
    return need_of_peermem(examination) in (Need.WANTED, Need.NOT_NEEDED)


def _nic_modules(examination: Examination) -> tuple[str, ...]:
    """Return the modules that have to be loaded before there is an RDMA device to ask for DMA-BUF."""
    rdma = examination.node.rdma
    if rdma.reason is not Reason.NOT_THERE if isinstance(rdma, Unknown) else rdma.devices:
        return ()
    families = (("mlx5_ib", mlx5_functions(examination)), ("mlx4_ib", mlx4_functions(examination)))
    return tuple(name for name, cards in families if not isinstance(cards, Unknown) and cards)


def unknown_need(need: Unknown) -> Outcome:
    """Report that it is unknown whether the node needs nvidia_peermem."""
    if need.source == PROC_MODULES and need.detail.endswith(_FIRST):
        return unknown(f"needs {need.detail.removesuffix(_FIRST)} to be loaded")
    return unknown_without(DMABUF, need)


def not_needed(need: Need, *evidence: Evidence) -> Outcome:
    """Pass a check of nvidia_peermem on a node that does not need the module."""
    return passed(Evidence("gdrtop check --only no-gdr-path", f"not needed: {need.value}"), *evidence)


def peermem_fault(
    examination: Examination,
    cause: str,
    *evidence: Evidence,
    fix: Plan | None = None,
    part_of: tuple[str, ...] = (),
) -> Outcome:
    """Report why nvidia_peermem is missing: critical, a note or nothing, by whether the node needs it.

    Where repairing DMA-BUF is the better fix, the finding is listed under what is wrong with DMA-BUF.
    """
    need = need_of_peermem(examination)
    if isinstance(need, Unknown):
        return unknown_need(need)
    if need is Need.NOT_NEEDED:
        return not_needed(need, *evidence)
    wanted = need is Need.WANTED
    dmabuf = DMABUF_MISSING if not wanted and dmabuf_comes_first(examination) else ()
    return found(
        f"{cause} GPUDirect RDMA works without it, by DMA-BUF." if wanted else cause,
        *evidence,
        fix=fix,
        severity=Severity.NOTE if wanted else Severity.CRITICAL,
        devices=(PEERMEM,),
        impact=NOT_NEEDED_HERE if wanted else STAGED,
        part_of=("gpu-too-old-for-gdr", *refused_by(examination, PEERMEM), *part_of, *dmabuf),
    )


def dmabuf_comes_first(examination: Examination) -> bool:
    """Return whether DMA-BUF is the path to repair, and not nvidia_peermem.

    NVIDIA recommends DMA-BUF; it takes an exchange of the driver where the proprietary modules run, and
    nothing makes it work for GPUs before Turing or for ConnectX-3 (mlx4_ib has no reg_user_mr_dmabuf).
    """
    gpus = examination.node.gpus
    if not isinstance(gpus, Unknown) and gpus.gpus:
        old = [known(gpu.compute_capability, OLDEST_OPEN_GPU) < OLDEST_OPEN_GPU for gpu in gpus.gpus]
        if all(old):
            return False
    nics, peers = mlx5_functions(examination), peer_nics(examination)
    if nics == () and mlx4_functions(examination):
        return False
    if peers == ():
        return True
    flavour = gpus if isinstance(gpus, Unknown) else gpus.driver.flavour
    return flavour is Flavour.OPEN or not has_peer_symbols(examination)


def has_peer_symbols(examination: Examination) -> bool:
    """Return whether the RDMA stack on this node has the peer-memory interface: OFED's, or some kernels'."""
    modules, files = examination.node.modules, examination.module_files
    if not isinstance(files, Unknown) and files.peer_memory:
        return True
    if isinstance(modules, Unknown):
        return False
    listed = [one for one in modules.symbols if one.symbol == PEER_MEMORY_SYMBOL]
    return any(not isinstance(one.provider, Unknown) for one in listed) or not isinstance(
        modules.memory_peers, Unknown
    )


def refused_by(examination: Examination, name: str) -> tuple[str, ...]:
    """Return the ids of the checks that explain why a module could not be loaded, the strongest first."""
    module, kernel = module_of(examination, name), examination.node.kernel
    if isinstance(module, Unknown):
        return ()
    ids = []
    if not isinstance(kernel, Unknown) and kernel.modules_disabled is True:
        ids.append("kernel-forbids-modules-disabled")
    if module.kernel_forbids:
        ids.append("module-blacklisted-cmdline")
    if module.install_line is not None and loads_nothing(module.install_line):
        ids.append("module-blacklisted-install")
    ids += _refused_file(examination, name)
    if module.blacklisted is not None:
        ids.append("module-blacklisted")
    if isinstance(module.on_disk, Unknown) and module.on_disk.reason is Reason.NOT_THERE:
        ids += _not_built(examination, name)
    return tuple(ids)


def _refused_file(examination: Examination, name: str) -> list[str]:
    file, release = file_of(examination, name), examination.node.kernel_release
    if isinstance(file, Unknown):
        return []
    ids = ["secure-boot-key-rejected"]  # the kernel does not name the module that it rejected
    if isinstance(file.signer, Unknown):
        ids = ["kernel-forbids-modules-lockdown", "secure-boot-unsigned", *ids]
    if not isinstance(file.kernel, Unknown) and file.kernel != release:
        ids.append("module-wrong-vermagic")
    return ids


def _not_built(examination: Examination, name: str) -> list[str]:
    """Return the ids of the checks of DKMS, where a package of this module's is concerned."""
    dkms, release = examination.dkms, examination.node.kernel_release
    if isinstance(dkms, Unknown):
        return []
    packages = DRIVER_PACKAGES if name.startswith("nvidia") else ("mlnx-ofed-kernel",)
    ours = [one for one in dkms.modules if one.name in packages]
    if any(release in (*one.built, *one.installed) for one in ours):
        return []
    failed = ["dkms-build-failed"] if any(one.failed_log is not None for one in ours) else []
    return [*failed, "dkms-not-built-for-kernel"] if ours else []


def absent_peermem(examination: Examination) -> KernelModule | Outcome:
    """Return nvidia_peermem where neither it nor its predecessor is loaded; else the outcome that says so."""
    aside = no_peermem_pair(examination)
    if aside is not None:
        return aside
    module, older = module_of(examination, PEERMEM), module_of(examination, "nv_peer_mem")
    if isinstance(module, Unknown):
        return unknown_without(MODULES, module)
    for one in (module, older):
        if not isinstance(one, Unknown) and is_present(one):
            return passed(state_evidence(one))
    return module


def loaded_peermem(examination: Examination) -> KernelModule | Outcome:
    """Return nvidia_peermem where it is loaded; else the outcome that says so."""
    aside = no_peermem_pair(examination)
    if aside is not None:
        return aside
    module = module_of(examination, PEERMEM)
    if isinstance(module, Unknown):
        return unknown_without(MODULES, module)
    if not is_present(module):
        return passed(state_evidence(module))
    return module


def missing_modules(examination: Examination) -> Maybe[tuple[str, ...]]:
    """Return the modules that this node needs and that are not loaded; nvidia_peermem as far as needed."""
    absent: list[str] = []
    for names, devices in (
        (GPU_MODULES, gpu_functions(examination)),
        (RDMA_MODULES, mlx_functions(examination)),
        (MLX5_MODULES, mlx5_functions(examination)),
        (MLX4_MODULES, mlx4_functions(examination)),
    ):
        if isinstance(devices, Unknown):
            return devices
        absent += names if devices else ()
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


def severity_of_missing(examination: Examination, names: tuple[str, ...]) -> Severity:
    """Return what it costs that these modules are not loaded."""
    if any(name != PEERMEM for name in names):
        return Severity.CRITICAL
    need = need_of_peermem(examination)
    if isinstance(need, Unknown):
        return Severity.WARNING
    return Severity.CRITICAL if need is Need.NEEDED else Severity.NOTE


def impact_of_missing(examination: Examination, names: tuple[str, ...]) -> str:
    """Return what the user loses while these modules are not loaded."""
    if "nvidia" in names:
        return "No GPU works on this node."
    others = [name for name in names if name != PEERMEM]
    if others:
        return f"RDMA or CUDA does not work without {', '.join(others)}."
    return NOT_NEEDED_HERE if is_spare(examination) else STAGED
