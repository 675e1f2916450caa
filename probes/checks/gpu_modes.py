"""Checks of what a GPU is and how it is set up: generation, MIG, vGPU, confidential computing, Grace."""

from __future__ import annotations

import re

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.gpu import NO_GPU, asked, bdfs_of, gpus_of, names_of
from probes.checks.wording import at_most
from probes.examination import Examination
from probes.gpus import Gpu
from probes.plan import Plan, instruction
from probes.plans.mig import mig_off
from probes.unknown import Maybe, Unknown, known

AREA = Area("gpu")
_GDR = "NVIDIA GPUDirect RDMA manual, https://docs.nvidia.com/cuda/gpudirect-rdma/"
# "NVIDIA A30-8C", "GRID A100D-40C", "NVIDIA A100-1-5CME"; not "NVIDIA A100-SXM4-80GB".
_PROFILE = re.compile(r"(?:^GRID |-\d{1,3}(?:-\d{1,3})?[ABCQ](?:ME)?$)")
_KEPLER = (3, 0)
_AMPERE = (8, 0)
_C2C_SINCE = (2, 27)


def _name(gpu: Gpu) -> Evidence:
    return Evidence(f"nvidia-smi -L, GPU{gpu.index}", gpu.name)


@AREA.check(
    "mig-with-gdr",
    Severity.NOTE,
    "MIG is on: instances have no peer-to-peer, and traffic between GPUs goes through NICs",
    "NVIDIA MIG user guide, https://docs.nvidia.com/datacenter/tesla/mig-user-guide/",
)
def mig(examination: Examination) -> Outcome:
    """NVML's MIG mode."""
    chosen, otherwise = asked(examination, lambda nvml: nvml.mig, "MIG mode")
    if not chosen:
        return otherwise
    return found(
        f"{names_of(chosen)}: right for many small jobs, wrong for training over several GPUs",
        *at_most(Evidence(f"nvidia-smi -q -d MIG, GPU{gpu.index}", "Enabled") for gpu in chosen),
        fix=mig_off(chosen),
        devices=bdfs_of(chosen),
    )


@AREA.check(
    "vgpu-without-gdr",
    Severity.WARNING,
    "this is a vGPU: few profiles offer GPUDirect RDMA",
    "NVIDIA AI Enterprise, vGPU features, https://docs.nvidia.com/ai-enterprise/",
)
def vgpu(examination: Examination) -> Outcome:
    """NVML's virtualisation mode, and names of vGPU profiles."""
    gpus = gpus_of(examination)
    if isinstance(gpus, Unknown):
        return unsure(f"needs the GPUs: {gpus}")
    chosen = [gpu for gpu in gpus if _is_vgpu(gpu) is True]
    if chosen:
        return found(
            f"{names_of(chosen)}: registering GPU memory fails with Bad address unless the profile "
            "supports it",
            *at_most(_name(gpu) for gpu in chosen),
            fix=Plan(
                "Have the hypervisor's admin change it",
                (
                    instruction(
                        "pass the whole GPU through, or take a profile that supports GPUDirect", False
                    ),
                ),
                disturbs="the virtual machine: it has to be restarted",
            ),
            devices=bdfs_of(chosen),
        )
    for gpu in gpus:
        answer = _is_vgpu(gpu)
        if isinstance(answer, Unknown):
            return unsure(f"needs NVML's virtualisation mode of GPU{gpu.index}: {answer}")
    return passed(*at_most(_name(gpu) for gpu in gpus) or (NO_GPU,))


def _is_vgpu(gpu: Gpu) -> Maybe[bool]:
    if _PROFILE.search(gpu.name):
        return True
    return gpu.nvml if isinstance(gpu.nvml, Unknown) else gpu.nvml.is_vgpu


@AREA.check("geforce-no-gdr", Severity.NOTE, "GeForce GPUs have no GPUDirect RDMA", _GDR)
def geforce(examination: Examination) -> Outcome:
    """GPUs whose name says GeForce."""
    gpus = gpus_of(examination)
    if isinstance(gpus, Unknown):
        return unsure(f"needs the GPUs: {gpus}")
    chosen = [gpu for gpu in gpus if "geforce" in gpu.name.casefold()]
    if chosen:
        return found(
            f"{names_of(chosen)}: all looks well, and registering GPU memory fails all the same",
            *at_most(_name(gpu) for gpu in chosen),
            fix=Plan(
                "Stop NCCL from trying",
                (
                    instruction(
                        "set NCCL_NET_GDR_LEVEL=LOC in the job; only another GPU brings GPUDirect", False
                    ),
                ),
            ),
            devices=bdfs_of(chosen),
        )
    return passed(*at_most(_name(gpu) for gpu in gpus) or (NO_GPU,))


def _capability(gpu: Gpu) -> Evidence:
    shown = gpu.compute_capability
    told = "unknown" if isinstance(shown, Unknown) else f"{shown[0]}.{shown[1]}"
    return Evidence(f"nvidia-smi --query-gpu=compute_cap, GPU{gpu.index}", told)


def _capability_unknown(gpus: tuple[Gpu, ...]) -> Outcome:
    for gpu in gpus:
        if isinstance(gpu.compute_capability, Unknown):
            return unsure(f"needs the compute capability of GPU{gpu.index}: {gpu.compute_capability}")
    return passed(*at_most(_capability(gpu) for gpu in gpus) or (NO_GPU,))


@AREA.check("gpu-too-old-for-gdr", Severity.CRITICAL, "a GPU is older than GPUDirect RDMA", _GDR)
def too_old(examination: Examination) -> Outcome:
    """Compute capability below 3.0 (Kepler), where GPUDirect RDMA began."""
    gpus = gpus_of(examination)
    if isinstance(gpus, Unknown):
        return unsure(f"needs the GPUs: {gpus}")
    old = [gpu for gpu in gpus if known(gpu.compute_capability, _KEPLER) < _KEPLER]
    if old:
        return found(
            f"{names_of(old)}: GPUDirect RDMA came with Kepler, compute capability 3.0",
            *at_most(_capability(gpu) for gpu in old),
            devices=bdfs_of(old),
        )
    return _capability_unknown(gpus)


@AREA.check(
    "gdr-read-off-on-old-gpus",
    Severity.NOTE,
    "NCCL sends from host memory on GPUs before Ampere that have no NVLink",
    "NVIDIA NCCL environment variables, NCCL_NET_GDR_READ",
)
def read_off(examination: Examination) -> Outcome:
    """Compute capability below 8.0 without NVLink: NCCL then receives by GPUDirect, but does not send."""
    gpus = gpus_of(examination)
    if isinstance(gpus, Unknown):
        return unsure(f"needs the GPUs: {gpus}")
    old = [gpu for gpu in gpus if known(gpu.compute_capability, _AMPERE) < _AMPERE]
    unlinked = [gpu for gpu in old if not isinstance(gpu.nvlinks, Unknown) and not gpu.nvlinks]
    if unlinked:
        return found(
            f"{names_of(unlinked)}: the receiving side shows /GDRDMA, the sending side does not: by design",
            *at_most(_capability(gpu) for gpu in unlinked),
            fix=Plan(
                "Measure whether sending by GPUDirect is faster here",
                (instruction("set NCCL_NET_GDR_READ=1 in the job, and compare", False),),
                disturbs="the job: it has to be restarted",
            ),
            devices=bdfs_of(unlinked),
        )
    for gpu in old:
        if isinstance(gpu.nvlinks, Unknown):
            return unsure(f"needs the number of NVLinks of GPU{gpu.index}: {gpu.nvlinks}")
    return _capability_unknown(gpus)


@AREA.check(
    "confidential-computing-on",
    Severity.NOTE,
    "confidential computing keeps NICs out of GPU memory",
    "NVIDIA confidential computing documents, https://docs.nvidia.com/confidential-computing/",
)
def confidential(examination: Examination) -> Outcome:
    """NVML's state of confidential computing."""
    facts = examination.node.gpus
    if isinstance(facts, Unknown):
        return unsure(f"needs the GPUs: {facts}")
    if not facts.gpus:
        return passed(NO_GPU)
    state = facts.driver.confidential_computing
    if isinstance(state, Unknown):
        return unsure(f"needs NVML's state of confidential computing: {state}")
    source = "nvidia-smi conf-compute -f"
    if not state:
        return passed(Evidence(source, "OFF"))
    return found(
        "by design: all traffic is staged through host memory, neither DMA-BUF nor nvidia-peermem works",
        Evidence(source, "ON"),
        fix=Plan(
            "Turn it off, where the data allow it",
            (
                instruction(
                    "turn confidential computing off with NVIDIA's gpu-admin-tools, and reset the GPUs"
                ),
            ),
            needs_reboot=True,
            disturbs="every job on this node",
        ),
        devices=bdfs_of(facts.gpus),
    )


@AREA.check(
    "c2c-grace-specifics",
    Severity.WARNING,
    "this NCCL does not use GPUDirect RDMA over Grace's C2C link",
    "NVIDIA NCCL environment variables, NCCL_NET_GDR_C2C",
)
def c2c(examination: Examination) -> Outcome:
    """NCCL before 2.27, on the node or in its jobs, where GPUs hang on Grace CPUs by C2C."""
    gpus = gpus_of(examination)
    if isinstance(gpus, Unknown):
        return unsure(f"needs the GPUs: {gpus}")
    joined = [gpu for gpu in gpus if known(gpu.c2c_links, 0)]
    if not joined:
        for gpu in gpus:
            if isinstance(gpu.c2c_links, Unknown):
                return unsure(f"needs the number of C2C links of GPU{gpu.index}: {gpu.c2c_links}")
        return passed(Evidence("NVML", "no GPU has C2C links"))
    versions = _nccl_versions(examination)
    old = [one for one in versions if _version(one.value) < _C2C_SINCE]
    if old:
        return found(
            "the NICs hang on the CPU (PHB): NCCL 2.27 and later cross C2C by default, older ones do not",
            *at_most(old),
            fix=Plan(
                "Use NCCL 2.27 or later",
                (
                    instruction("use an image or package with NCCL 2.27 or later", False),
                    instruction("until then: NCCL_NET_GDR_C2C=1 in the job", False),
                ),
                disturbs="the job: it has to be restarted",
                note="leave ACS and SMMU alone here: advice for x86 makes it worse",
            ),
            devices=bdfs_of(joined),
        )
    if not versions:
        return unsure("needs NCCL's version: no libnccl on this node, and no job that shows one")
    return passed(*at_most(versions))


def _nccl_versions(examination: Examination) -> list[Evidence]:
    """What NCCL there is on the node, and in jobs that do not set NCCL_NET_GDR_C2C themselves."""
    found_here: list[Evidence] = []
    if not isinstance(examination.libraries, Unknown):
        for library in examination.libraries.found.get("libnccl.so.2", ()):
            if not isinstance(library.version, Unknown):
                found_here.append(Evidence(library.path, library.version))
    processes = () if isinstance(examination.processes, Unknown) else examination.processes.processes
    for process in processes:
        if known(process.environment, {}).get("NCCL_NET_GDR_C2C") == "1":
            continue
        for mapped in known(process.libraries, ()):
            if mapped.name == "libnccl" and not isinstance(mapped.version, Unknown):
                found_here.append(Evidence(f"/proc/{process.pid}/maps: {mapped.path}"[:200], mapped.version))
    return found_here


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())


@AREA.check(
    "c2c-grace-specifics-gb10",
    Severity.NOTE,
    "GB10 (DGX Spark) has no GPUDirect RDMA",
    "NVIDIA DGX Spark porting guide, https://docs.nvidia.com/dgx/dgx-spark-porting-guide/",
)
def gb10(examination: Examination) -> Outcome:
    """GPUs named GB10."""
    gpus = gpus_of(examination)
    if isinstance(gpus, Unknown):
        return unsure(f"needs the GPUs: {gpus}")
    chosen = [gpu for gpu in gpus if re.search(r"\bGB10\b", gpu.name)]
    if chosen:
        return found(
            "by design: its memory is the CPU's, and neither nvidia-peermem nor DMA-BUF nor GDRCopy works",
            *at_most(_name(gpu) for gpu in chosen),
            fix=Plan(
                "Register host memory",
                (
                    instruction(
                        "allocate with cudaHostAlloc and register that; the GPU reads it directly", False
                    ),
                ),
            ),
            devices=bdfs_of(chosen),
        )
    return passed(*at_most(_name(gpu) for gpu in gpus) or (NO_GPU,))
