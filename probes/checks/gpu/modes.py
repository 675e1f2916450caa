"""Checks of a GPU's kind and mode: generation, MIG, vGPU, confidential computing, Grace and its memory."""

from __future__ import annotations

from probes.base.evidence import Evidence, first_n
from probes.base.plan import instruction, user_plan
from probes.base.text import join_limited, version_numbers
from probes.base.unknown import Unknown, known
from probes.checks.gpu.devices import GPUS, NO_GPU, bdfs_of, gpus_with, names_of, need_gpus, need_nvml
from probes.checks.nccl.library import versions_of
from probes.facts.gpu.generations import AMPERE, GB10, KEPLER, is_before
from probes.facts.gpu.gpus import (
    DRIVER_PARAMETERS,
    MEMORY_MODE_PARAMETER,
    Gpu,
    MemoryMode,
    gpu_numa_nodes,
    is_vgpu,
    memory_mode,
)
from probes.nccl.settings import parse_level
from probes.plans.boot import driver_option_plan
from probes.plans.driver import mig_off
from probes.queries.finding import Area, Outcome, found, need, passed, unknown
from probes.queries.jobs import RESTARTS, about, affected, has_pods, jobs_of
from probes.queries.modules import impossible_by_design
from probes.snapshot.examination import Examination
from probes.topology.nccl_paths import ORDER, Nccl

AREA = Area("gpu", __package__)
_QUERY = "nvidia-smi --query-gpu"
_C2C_SINCE, _C2C_VARIABLE = (2, 27), (2, 26)


def _name(gpu: Gpu) -> Evidence:
    return Evidence(f"nvidia-smi -L, GPU{gpu.index}", gpu.name)


@AREA.note("mig-with-gdr")
def mig_with_gdr(examination: Examination) -> Outcome:
    """Read NVML's MIG mode."""
    chosen = gpus_with(examination, lambda nvml: nvml.mig, "MIG enabled")
    return found(
        f"{names_of(chosen)}: MIG is for many small jobs, not for multi-GPU training.",
        *first_n(Evidence(f"{_QUERY}=mig.mode.current, GPU{gpu.index}", "Enabled") for gpu in chosen),
        fix=mig_off(chosen),
        devices=bdfs_of(chosen),
    )


@AREA.note("vgpu-without-gdr")
def vgpu_without_gdr(examination: Examination) -> Outcome:
    """Read NVML's virtualization mode and the names of vGPU profiles, unless libcuda reports support."""
    gpus = need_gpus(examination)
    chosen = [gpu for gpu in gpus if is_vgpu(gpu) is True and not _has_support(examination, gpu)]
    if chosen:
        return found(
            f"{names_of(chosen)}: the hypervisor shares this GPU. Support depends on its vGPU profile.",
            *first_n(_name(gpu) for gpu in chosen),
            devices=bdfs_of(chosen),
        )
    for gpu in gpus:
        need_nvml(gpu, is_vgpu(gpu))
    return passed(*first_n(_name(gpu) for gpu in gpus) or (NO_GPU,))


def _has_support(examination: Examination, gpu: Gpu) -> bool:
    """Say whether libcuda reports that this GPU supports a GPUDirect RDMA path."""
    direct = examination.node.gpudirect
    support = None if isinstance(direct, Unknown) else direct.gpu_support.get(gpu.bdf)
    return support is not None and (support.dmabuf is True or support.peermem is True)


@AREA.note("geforce-no-gdr")
def geforce_no_gdr(examination: Examination) -> Outcome:
    """Find GPUs whose name says GeForce."""
    gpus = need_gpus(examination)
    named = [gpu for gpu in gpus if "geforce" in gpu.name.casefold()]
    chosen = [gpu for gpu in named if not _has_support(examination, gpu)]
    if chosen:
        return found(
            f"{names_of(chosen)}: by design. libcuda refuses to register the memory of a GeForce GPU.",
            *first_n(_name(gpu) for gpu in chosen),
            devices=bdfs_of(chosen),
        )
    return passed(*first_n(_name(gpu) for gpu in gpus) or (NO_GPU,))


def _capability(gpu: Gpu) -> Evidence:
    shown = gpu.compute_capability
    value = "unknown" if isinstance(shown, Unknown) else f"{shown[0]}.{shown[1]}"
    return Evidence(f"{_QUERY}=compute_cap, GPU{gpu.index}", value)


def _new_enough(gpus: tuple[Gpu, ...]) -> Outcome:
    for gpu in gpus:
        need_nvml(gpu, gpu.compute_capability)
    return passed(*first_n(_capability(gpu) for gpu in gpus) or (NO_GPU,))


@AREA.critical("gpu-too-old-for-gdr", requires=(impossible_by_design,))
def gpu_too_old_for_gdr(examination: Examination) -> Outcome:
    """Find compute capabilities below 3.0 (Kepler), the first with GPUDirect RDMA."""
    gpus = need_gpus(examination)
    old = [gpu for gpu in gpus if is_before(gpu.compute_capability, KEPLER)]
    if old:
        return found(
            f"{names_of(old)}: GPUDirect RDMA needs compute capability 3.0 (Kepler) or newer.",
            *first_n(_capability(gpu) for gpu in old),
            devices=bdfs_of(old),
        )
    return _new_enough(gpus)


@AREA.note("gdr-read-off-on-old-gpus", requires=(impossible_by_design,))
def gdr_read_off_on_old_gpus(examination: Examination) -> Outcome:
    """Find compute capabilities below 8.0 without NVLink, on which NCCL receives only by GPUDirect."""
    gpus = need_gpus(examination)
    old = [gpu for gpu in gpus if is_before(gpu.compute_capability, AMPERE)]
    unlinked = [gpu for gpu in old if not isinstance(gpu.nvlinks, Unknown) and not gpu.nvlinks]
    if unlinked:
        return found(
            f"{names_of(unlinked)}: by design. In NCCL's log only the receiving side shows /GDRDMA.",
            *first_n(_capability(gpu) for gpu in unlinked),
            fix=user_plan(
                "Measure whether GPUDirect RDMA is faster for sending",
                "Set NCCL_NET_GDR_READ=1 in the job, and compare",
                disturbs=RESTARTS,
            ),
            devices=bdfs_of(unlinked),
        )
    for gpu in old:
        need_nvml(gpu, gpu.nvlinks)
    return _new_enough(gpus)


@AREA.note("confidential-computing-on")
def confidential_computing_on(examination: Examination) -> Outcome:
    """Read NVML's state of confidential computing."""
    facts = need(examination.node.gpus, GPUS)
    if not facts.gpus:
        return passed(NO_GPU)
    source = "nvidia-smi conf-compute -f"
    if not need(facts.driver.confidential_computing, "NVML"):
        return passed(Evidence(source, "OFF"))
    return found(
        "By design. Neither DMA-BUF nor nvidia-peermem works while confidential computing is enabled.",
        Evidence(source, "ON"),
        devices=bdfs_of(facts.gpus),
    )


@AREA.warning("c2c-grace-specifics", requires=(impossible_by_design,))
def c2c_grace_specifics(examination: Examination) -> Outcome:
    """Find NCCL before 2.27, on the node or in its jobs, where GPUs are attached to Grace CPUs by C2C."""
    gpus = need_gpus(examination)
    direct = examination.node.gpudirect
    # GB10 has C2C too, and no GPUDirect RDMA.
    joined = [
        gpu
        for gpu in gpus
        if known(gpu.c2c_links, 0) and (isinstance(direct, Unknown) or not direct.never_supports(gpu.bdf))
    ]
    if not joined:
        for gpu in gpus:
            need_nvml(gpu, gpu.c2c_links)
        return passed(Evidence("NVML", "no GPU has C2C links"))
    versions = _nccl_versions(examination)
    old = [nccl for nccl in versions if version_numbers(nccl.value) < _C2C_SINCE]
    if old:
        # NCCL_NET_GDR_C2C came with 2.26 (default 0; 1 since 2.27.3); before, the level alone decides.
        has_variable = {version_numbers(nccl.value) >= _C2C_VARIABLE for nccl in old}
        until_then = [
            instruction(f"Until then, set {setting} in jobs with NCCL {which}", False)
            for condition, setting, which in (
                (True, "NCCL_NET_GDR_C2C=1", "2.26"),
                (False, "NCCL_NET_GDR_LEVEL=PHB", "2.25 or older"),
            )
            if condition in has_variable
        ]
        by_jobs = any(nccl.source.startswith("/proc/") for nccl in old)
        cause = "The NICs are attached to the CPU (PHB). NCCL has used the C2C path by default since 2.27.3."
        if any(end.data_direct for end in examination.topology.nics):
            cause = "NCCL 2.27.3 and later use the NICs' Data Direct functions and the C2C path."
        return found(
            about(affected(jobs_of(examination), old), cause) if by_jobs else cause,
            *first_n(old),
            fix=user_plan(
                "Use NCCL 2.27 or later",
                "Use an image or package with NCCL 2.27 or later",
                *until_then,
                disturbs=RESTARTS,
                note="Do not change ACS or the SMMU: advice for x86 does not apply here.",
            ),
            devices=bdfs_of(joined),
            data_path=by_jobs,
        )
    if not versions:
        return unknown("needs NCCL's version (no libnccl on this node or in a job)")
    return passed(*first_n(versions))


def _nccl_versions(examination: Examination) -> list[Evidence]:
    """Return the NCCL versions on the node, and in jobs whose settings do not allow the C2C path."""
    libraries, facts = examination.libraries, examination.processes
    installed = () if isinstance(libraries, Unknown) else libraries.found.get("libnccl.so.2", ())
    pairs = [(library.path, library.version) for library in installed]
    found_here = [Evidence(path, version) for path, version in pairs if not isinstance(version, Unknown)]
    for process in () if isinstance(facts, Unknown) else facts.processes:
        environment = known(process.environment, {})
        level = parse_level(environment.get("NCCL_NET_GDR_LEVEL", ""))
        if environment.get("NCCL_NET_GDR_C2C") == "1" or (level and level.rank >= ORDER[Nccl.PHB]):
            continue
        for mapped, _ in versions_of(process, "libnccl"):
            source = f"/proc/{process.pid}/maps: {mapped.path}"[:200]
            found_here.append(Evidence(source, str(mapped.version)))
    return found_here


@AREA.note("c2c-grace-specifics-gb10")
def c2c_grace_specifics_gb10(examination: Examination) -> Outcome:
    """Find GPUs named GB10."""
    gpus = need_gpus(examination)
    named = [gpu for gpu in gpus if GB10.search(gpu.name)]
    chosen = [gpu for gpu in named if not _has_support(examination, gpu)]
    if chosen:
        return found(
            "By design. The GPU uses the CPU's memory. nvidia-peermem, DMA-BUF and GDRCopy do not work.",
            *first_n(_name(gpu) for gpu in chosen),
            devices=bdfs_of(chosen),
        )
    return passed(*first_n(_name(gpu) for gpu in gpus) or (NO_GPU,))


@AREA.note("gpu-memory-in-kubernetes")
def gpu_memory_in_kubernetes(examination: Examination) -> Outcome:
    """Find NUMA nodes of GPU memory where GPUs have C2C links and kubelet runs."""
    joined = [gpu for gpu in need_gpus(examination) if need_nvml(gpu, gpu.c2c_links)]
    if not joined:
        return passed(Evidence("NVML", "no GPU has C2C links"))
    node = examination.node
    facts = need(node.gpus, "the NVIDIA driver")
    mode = need(memory_mode(facts.driver, node.numa), "the NUMA nodes")
    parameters = facts.driver.parameters
    parameter = known(parameters, {}).get(MEMORY_MODE_PARAMETER, '""')
    # nv-reg.h has it since 580.65.06. A driver only logs that it ignores an option that it does not have.
    is_missing = not isinstance(parameters, Unknown) and MEMORY_MODE_PARAMETER not in parameters
    shown = Evidence(
        DRIVER_PARAMETERS, f"{MEMORY_MODE_PARAMETER}: {'not listed' if is_missing else parameter}"
    )
    first = ("Install driver 580.65.06 or newer: this one has no such option",) if is_missing else ()
    if mode is MemoryMode.DRIVER or not has_pods(examination):
        return passed(shown, Evidence("/sys/devices/system/node", mode.value))
    nodes = join_limited(str(number) for number in gpu_numa_nodes(node.numa))
    return found(
        "Each GPU's memory is a NUMA node without CPUs. NVIDIA's GPU Operator has selected CDMM since "
        "driver 580.",
        shown,
        Evidence("/sys/devices/system/node", f"NUMA nodes without CPUs: {nodes}"),
        fix=driver_option_plan(
            examination,
            "Let the driver manage GPU memory (CDMM)",
            *first,
            "Write `options nvidia NVreg_CoherentGPUMemoryMode=driver` to a file in /etc/modprobe.d",
            note="Programs that get GPU memory from a NUMA node (numactl --membind) must then call "
            "cudaMalloc.",
        ),
        devices=bdfs_of(joined),
    )
