"""Which modules this node needs, nvidia_peermem in particular, and which findings explain a missing one."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from probes.base.evidence import Evidence, Severity
from probes.base.plan import Plan, sentences
from probes.base.unknown import Maybe, Reason, Unknown, is_there, known, map_known
from probes.facts.gpu.generations import TURING, is_before
from probes.facts.gpu.gpus import Flavor
from probes.facts.jobs.processes import names_of
from probes.facts.kernel.log import UNSUPPORTED_GPU
from probes.facts.kernel.module_files import DRIVER_PACKAGES, ModuleFile
from probes.facts.kernel.module_files import MODULES as MODULE_FILES
from probes.facts.kernel.modules import PEERMEM, KernelModule
from probes.facts.pci.nic_families import CONNECTX, CONNECTX_3, EFA, LADDER_FAMILIES, MELLANOX
from probes.host.values import PROC_MODULES
from probes.queries.finding import STAGED, CheckEnded, Outcome, end_with, found, need, passed, unknown
from probes.queries.jobs import jobs_of
from probes.queries.kernel_log import is_dmabuf_refused
from probes.queries.modules import (
    DMABUF,
    MODULES,
    boot_loaders,
    file_of,
    gpu_functions,
    is_present,
    module_of,
    nics_of,
    no_peermem_pair,
    peer_nics,
    state_evidence,
)
from probes.snapshot.examination import Examination

GPU_MODULES = ("nvidia", "nvidia_uvm")
RDMA_MODULES = ("ib_core", "ib_uverbs")

# Findings that name why nvidia_peermem cannot be loaded; peermem-not-loaded is the symptom of each.
PEERMEM_REASONS = (
    *("nv-peer-mem-conflict", "peermem-symbol-version-mismatch-nvidia", "peermem-symbol-version-mismatch"),
    *("peermem-unknown-symbol-inbox-core", "peermem-parameter-invalid", "peermem-built-without-symbols"),
)
PEERMEM_MISSING = (
    *PEERMEM_REASONS,
    *("peermem-not-on-disk-old-driver", "peermem-not-on-disk-container", "peermem-not-on-disk-other-kernel"),
    *("peermem-not-on-disk", "boot-load-race", "peermem-lost-after-driver-update", "peermem-not-loaded"),
)
DMABUF_MISSING = (
    *("p2p-topology-refused-override", "dmabuf-driver-too-old", "dmabuf-needs-open-module"),
    *("dmabuf-kernel-too-old", "dmabuf-kernel-config", "dmabuf-nic-driver-lacks-support"),
)
NOT_NEEDED_HERE = "None for jobs that use DMA-BUF. Programs without DMA-BUF support copy through host memory."
# NVIDIA GPUDirect RDMA manual, Deprecation Notice, https://docs.nvidia.com/cuda/gpudirect-rdma/
_DMABUF_FIRST = (
    "Prefer DMA-BUF, which works here: NVIDIA deprecates nvidia_peermem. Repair it only for programs without "
    "DMA-BUF support."
)
_FIRST = " must be loaded first"
NCCL_SEES_PEERMEM = (2, 23, 4)
"""The first NCCL that looks for /sys/module/nvidia_peermem/version; older ones need memory_peers.

Sources: https://github.com/NVIDIA/nccl/issues/1676; NCCL release notes 2.23.4.
"""


class Need(Enum):
    """Whether this node needs nvidia_peermem."""

    NEEDED = "DMA-BUF is not usable"
    WANTED = "DMA-BUF is usable; the node is set up to load nvidia_peermem as well"
    NOT_NEEDED = "DMA-BUF is usable, or no GPU and NIC could use nvidia_peermem"


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
    if is_dmabuf_refused(examination):
        return Need.NEEDED
    if isinstance(direct.dmabuf.usable, Unknown):
        return direct.dmabuf.usable
    if not direct.dmabuf.usable:
        return Need.NEEDED
    return Need.NOT_NEEDED if modules.modules[PEERMEM].persistent is None else Need.WANTED


def is_spare(examination: Examination) -> bool:
    """Return whether DMA-BUF is usable, so that a fault of nvidia_peermem is a note only."""
    return need_of_peermem(examination) in (Need.WANTED, Need.NOT_NEEDED)


def spare_severity(examination: Examination) -> Severity | None:
    """Return NOTE where DMA-BUF is usable, so that nvidia_peermem is a spare; None: the check's severity."""
    return Severity.NOTE if is_spare(examination) else None


def _nic_modules(examination: Examination) -> tuple[str, ...]:
    """Return the modules that must be loaded before an RDMA device exists that can be probed for DMA-BUF."""
    rdma = examination.node.rdma
    if rdma.reason is not Reason.NOT_THERE if isinstance(rdma, Unknown) else rdma.devices:
        return ()
    return tuple(family.rdma_module for family in MELLANOX if known(nics_of(examination, family), ()))


def required_need(examination: Examination) -> Need:
    """Return whether nvidia_peermem matters here, or end the check as unknown."""
    wanted = need_of_peermem(examination)
    if isinstance(wanted, Unknown) and wanted.source == PROC_MODULES and wanted.detail.endswith(_FIRST):
        raise CheckEnded(unknown(f"needs {wanted.detail.removesuffix(_FIRST)} to be loaded"))
    return need(wanted, DMABUF)


def not_needed(*evidence: Evidence) -> Outcome:
    """Pass a check of nvidia_peermem on a node that does not need the module."""
    why = f"not needed: {Need.NOT_NEEDED.value}"
    return passed(Evidence("gdrtop check --only no-gdr-path", why), *evidence)


def peermem_fault(
    examination: Examination,
    cause: str,
    *evidence: Evidence,
    fix: Plan | None = None,
    part_of: tuple[str, ...] = (),
) -> Outcome:
    """Report why nvidia_peermem is missing; the node's need for it decides the severity.

    Where repairing DMA-BUF is the better fix, the finding is listed under what is wrong with DMA-BUF.
    """
    required = required_need(examination)
    if required is Need.NOT_NEEDED:
        return not_needed(*evidence)
    wanted = required is Need.WANTED
    dmabuf = DMABUF_MISSING if not wanted and dmabuf_comes_first(examination) else ()
    return found(
        f"{cause} GPUDirect RDMA still works with DMA-BUF." if wanted else cause,
        *evidence,
        fix=spare_fix(examination, _with_running_jobs(examination, fix)),
        severity=Severity.NOTE if wanted else Severity.CRITICAL,
        devices=(PEERMEM,),
        impact=NOT_NEEDED_HERE if wanted else STAGED,
        part_of=("gpu-too-old-for-gdr", *refused_by(examination, PEERMEM), *part_of, *dmabuf),
    )


def running_jobs(examination: Examination) -> str:
    """Return that running jobs do not use what is loaded now; by name, where only a restart gives them it."""
    users = [process for process in jobs_of(examination).processes if known(process.uverbs_files, ())]
    if not users or need_of_peermem(examination) is not Need.NEEDED:
        return "running jobs keep their current path until they restart"
    return f"running jobs keep their current path. Restart them to use GPUDirect RDMA: {names_of(users)}"


def _with_running_jobs(examination: Examination, fix: Plan | None) -> Plan | None:
    """Say in a plan that loads nvidia_peermem that the jobs which run now do not use it."""
    note = sentences(running_jobs(examination))
    if fix is None or note in fix.note or not any(PEERMEM in step.argv for step in fix.steps):
        return fix
    return replace(fix, note=f"{note} {fix.note}".rstrip())


def spare_fix(examination: Examination, fix: Plan | None) -> Plan | None:
    """Return a repair of nvidia_peermem; where DMA-BUF works, its note says that this is the better path."""
    if fix is None or not is_spare(examination):
        return fix
    return replace(fix, note=f"{_DMABUF_FIRST} {fix.note}".rstrip())


def dmabuf_comes_first(examination: Examination) -> bool:
    """Return whether DMA-BUF is the path to repair, and not nvidia_peermem.

    NVIDIA recommends DMA-BUF. It needs another driver where the proprietary modules run, and
    it cannot work for GPUs before Turing or for ConnectX-3 (mlx4_ib has no reg_user_mr_dmabuf).
    """
    gpus = examination.node.gpus
    cards = () if isinstance(gpus, Unknown) else gpus.gpus
    if cards and all(is_before(gpu.compute_capability, TURING) for gpu in cards):
        return False
    nics, peers = nics_of(examination, CONNECTX), peer_nics(examination.node)
    if nics == () and nics_of(examination, CONNECTX_3):
        return False
    if peers == ():
        return True
    nvidia = module_of(examination, "nvidia")
    if not isinstance(nvidia, Unknown) and not is_present(nvidia) and is_there(nvidia.on_disk) is False:
        return True  # the driver that will be installed has open modules
    flavor = gpus if isinstance(gpus, Unknown) else gpus.driver.flavor
    return flavor is Flavor.OPEN or not has_peer_symbols(examination)


def has_peer_symbols(examination: Examination) -> bool:
    """Return whether the RDMA stack has the peer-memory interface, as OFED and some kernels do."""
    modules, files = examination.node.modules, examination.module_files
    if not isinstance(files, Unknown) and files.peer_memory:
        return True
    if isinstance(modules, Unknown):
        return False
    exporter = modules.peer_memory
    is_exported = exporter is not None and not isinstance(exporter.provider, Unknown)
    return is_exported or not isinstance(modules.memory_peers, Unknown)


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
    if module.install_line is not None and module.install_line.loads_nothing:
        ids.append("module-blacklisted-install")
    ids += _refused_file(examination, name)
    if module.blacklisted is not None:
        ids.append("module-blacklisted")
    if is_there(module.on_disk) is False:
        ids += _not_built(examination, name)
    elif isinstance(module.on_disk, Unknown):
        ids.append("modules-index-missing")
    if unusable_file(examination, name):
        ids.append("module-file-unusable")
    log = examination.kernel_log
    messages = () if isinstance(log, Unknown) or name != "nvidia" else log.messages
    if any(UNSUPPORTED_GPU in message.text for message in messages):
        ids.append("gpu-driver-start-failed")
    return tuple(ids)


def unusable_file(examination: Examination, name: str) -> str:
    """Return the path of a file that depmod lists and modinfo cannot read; "" if it can, or is unknown."""
    module, facts = module_of(examination, name), examination.module_files
    if isinstance(module, Unknown) or isinstance(facts, Unknown) or isinstance(facts.files, Unknown):
        return ""
    is_listed = not isinstance(module.on_disk, Unknown)
    return str(module.on_disk) if is_listed and name in MODULE_FILES and name not in facts.files else ""


def architecture_differs(examination: Examination, file: ModuleFile) -> Maybe[bool]:
    """Return whether a module's file is for another architecture than this CPU."""
    cpu = map_known(examination.node.platform, lambda platform: platform.cpu_architecture)
    return map_known(cpu, lambda cpu: map_known(file.architecture, lambda architecture: architecture != cpu))


def _refused_file(examination: Examination, name: str) -> list[str]:
    file, release = file_of(examination, name), examination.node.kernel_release
    if isinstance(file, Unknown):
        return []
    ids = ["module-wrong-architecture"] * (architecture_differs(examination, file) is True)
    ids.append("secure-boot-key-rejected")  # the kernel does not name the module that it rejected
    if isinstance(file.signer, Unknown):
        ids = ["kernel-forbids-modules-lockdown", "secure-boot-unsigned", *ids]
    if not isinstance(file.kernel, Unknown) and file.kernel != release:
        ids.append("module-wrong-vermagic")
    return ids


def _not_built(examination: Examination, name: str) -> list[str]:
    """Return the ids of the DKMS checks that concern this module's package."""
    dkms, release = examination.dkms, examination.node.kernel_release
    if isinstance(dkms, Unknown):
        return []
    packages = DRIVER_PACKAGES if name.startswith("nvidia") else ("mlnx-ofed-kernel",)
    ours = [package for package in dkms.modules if package.name in packages]
    if any(release in (*package.built, *package.installed) for package in ours):
        return []
    failed = ["dkms-build-failed"] if any(package.failed_log is not None for package in ours) else []
    return [*failed, "dkms-not-built-for-kernel"] if ours else []


def absent_peermem(examination: Examination) -> KernelModule:
    """Return nvidia_peermem if neither it nor its predecessor is loaded; else end the check."""
    end_with(no_peermem_pair(examination))
    module, older = need(module_of(examination, PEERMEM), MODULES), module_of(examination, "nv_peer_mem")
    for present in (module, older):
        if not isinstance(present, Unknown) and is_present(present):
            end_with(passed(state_evidence(present)))
    return module


def loaded_peermem(examination: Examination) -> KernelModule:
    """Return nvidia_peermem if it is loaded; else end the check."""
    end_with(no_peermem_pair(examination))
    module = need(module_of(examination, PEERMEM), MODULES)
    if not is_present(module):
        end_with(passed(state_evidence(module)))
    return module


def needless_loaders(examination: Examination) -> tuple[Evidence, ...]:
    """Return what loads nvidia_peermem at boot where neither the node nor a memory region needs it."""
    module, wanted = module_of(examination, PEERMEM), known(need_of_peermem(examination), Need.NEEDED)
    is_used = known(examination.reading.peermem.refcnt, 0) > 0
    if is_used or wanted is Need.NEEDED or isinstance(module, Unknown):
        return ()
    return boot_loaders(examination, module)


def missing_modules(examination: Examination) -> Maybe[tuple[str, ...]]:
    """Return the modules that this node needs and that are not loaded."""
    needed: list[str] = []
    for names, devices in (
        (GPU_MODULES, gpu_functions(examination)),
        (RDMA_MODULES, nics_of(examination, *MELLANOX)),
        (RDMA_MODULES, nics_of(examination, EFA)),
        *((family.modules, nics_of(examination, family)) for family in LADDER_FAMILIES),
    ):
        if isinstance(devices, Unknown):
            return devices
        needed += names if devices else ()
    if need_of_peermem(examination) is not Need.NOT_NEEDED:
        needed.append(PEERMEM)
    missing = []
    for name in dict.fromkeys(needed):
        module = module_of(examination, name)
        if isinstance(module, Unknown):
            return module
        if not is_present(module):
            missing.append(name)
    return tuple(missing)


def severity_of_missing(examination: Examination, names: tuple[str, ...]) -> Severity:
    """Return how severe it is that these modules are not loaded."""
    if any(name != PEERMEM for name in names):
        return Severity.CRITICAL
    required = need_of_peermem(examination)
    if isinstance(required, Unknown):
        return Severity.WARNING
    return Severity.CRITICAL if required is Need.NEEDED else Severity.NOTE


def impact_of_missing(examination: Examination, names: tuple[str, ...]) -> str:
    """Return what the user loses while these modules are not loaded."""
    if "nvidia" in names:
        return "No GPU works on this node."
    others = [name for name in names if name != PEERMEM]
    if others:
        return f"RDMA or CUDA does not work without {', '.join(others)}."
    return NOT_NEEDED_HERE if is_spare(examination) else STAGED
