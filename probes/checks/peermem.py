"""nvidia_peermem that is not loaded: on disk, for another kernel only, or nowhere."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, passed, unsure
from probes.checks.module_facts import (
    LINE_LIMIT,
    PEERMEM,
    is_present,
    module_of,
    modules_dep,
    release_of,
    state_seen,
)
from probes.checks.module_need import absent_peermem, peermem_fault
from probes.checks.references import PEERMEM_MANUAL
from probes.checks.wording import SHOWN
from probes.examination import Examination
from probes.gpudirect import parse_driver_version
from probes.modules import KernelModule
from probes.plan import Plan, instruction
from probes.plans.interruptions import SWAP_ENDS_JOBS
from probes.plans.loading import load_plan, load_step
from probes.plans.obstacles import bar_of
from probes.plans.rebuilding import rebuild_plan
from probes.unknown import Maybe, Reason, Unknown

AREA = Area("modules")

_FIRST_WITH_PEERMEM = (470, 0, 0)


def _driver_numbers(examination: Examination) -> Maybe[tuple[int, int, int]]:
    gpus = examination.node.gpus
    version = gpus if isinstance(gpus, Unknown) else gpus.driver.version
    if isinstance(version, Unknown):
        return version
    numbers = parse_driver_version(version)
    return Unknown(Reason.MALFORMED, "/proc/driver/nvidia/version", version) if numbers is None else numbers


@AREA.check(
    "peermem-not-loaded",
    Severity.CRITICAL,
    "nvidia_peermem is not loaded: nothing loads it by itself",
    "NCCL troubleshooting guide, https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
)
def peermem_not_loaded(examination: Examination) -> Outcome:
    """On disk and not loaded; no fault where DMA-BUF is usable and nobody asked for it."""
    module = absent_peermem(examination)
    if isinstance(module, Outcome):
        return module
    if isinstance(module.on_disk, Unknown):
        if module.on_disk.reason is Reason.NOT_THERE:
            return passed(Evidence(modules_dep(examination), "no nvidia_peermem: see peermem-not-on-disk"))
        return unsure(f"whether there is a file to load is unknown: {module.on_disk}", state_seen(module))
    obstacle = bar_of(examination, PEERMEM)
    return peermem_fault(
        examination,
        "udev never asks for nvidia_peermem, for it belongs to no device: somebody has to load it"
        if obstacle is None
        else f"nvidia_peermem is not loaded, and something is in its way: {obstacle[:LINE_LIMIT]}",
        state_seen(module),
        Evidence("modinfo -n nvidia_peermem", module.on_disk),
        fix=load_plan(examination, PEERMEM) if obstacle is None else None,
    )


def _no_file(examination: Examination) -> KernelModule | Outcome:
    """nvidia_peermem that is not loaded and has no file for this kernel; else the outcome that says so."""
    module = absent_peermem(examination)
    if isinstance(module, Outcome):
        return module
    if not isinstance(module.on_disk, Unknown):
        return passed(Evidence("modinfo -n nvidia_peermem", module.on_disk))
    if module.on_disk.reason is not Reason.NOT_THERE:
        return unsure(f"needs /lib/modules of the host: {module.on_disk}", state_seen(module))
    return module


def _elsewhere(examination: Examination) -> Maybe[tuple[str, ...]]:
    """Other kernels that have the module, by depmod and by DKMS."""
    facts, dkms = examination.module_files, examination.dkms
    if isinstance(facts, Unknown):
        return facts
    kernels = dict.fromkeys(facts.elsewhere)
    if not isinstance(dkms, Unknown):
        for one in dkms.modules:
            if one.name.startswith("nvidia"):
                kernels.update(dict.fromkeys((*one.built, *one.installed)))
    kernels.pop(release_of(examination), None)
    return tuple(kernels)


@AREA.check(
    "peermem-not-on-disk",
    Severity.CRITICAL,
    "there is no nvidia_peermem for any kernel: the driver was installed without it",
    PEERMEM_MANUAL,
)
def peermem_not_on_disk(examination: Examination) -> Outcome:
    """A package or ready-made image of a driver of 470 or newer that leaves the module out."""
    module = _no_file(examination)
    if isinstance(module, Outcome):
        return module
    others = _elsewhere(examination)
    if isinstance(others, Unknown):
        return unsure(f"whether other kernels have the module is unknown: {others}")
    evidence = Evidence(modules_dep(examination), "no nvidia-peermem.ko")
    if others:
        return passed(evidence, Evidence("/lib/modules", "other kernels have it: see its own finding"))
    if _from_container(examination):
        return passed(evidence, Evidence("modinfo nvidia", "no file: the driver comes from a container"))
    numbers = _driver_numbers(examination)
    if not isinstance(numbers, Unknown) and numbers < _FIRST_WITH_PEERMEM:
        return passed(
            evidence, Evidence("/proc/driver/nvidia/version", "older than 470: see its own finding")
        )
    steps = (
        instruction("install the NVIDIA driver's DKMS package, or another one that brings nvidia-peermem"),
        load_step(examination, PEERMEM),
    )
    return peermem_fault(
        examination,
        "modprobe finds no nvidia_peermem in /lib/modules, for this kernel or any other",
        evidence,
        fix=Plan("Install nvidia-peermem", steps, reversible=False),
    )


def _from_container(examination: Examination) -> bool:
    """Whether the driver runs though its file is not on this node: a driver container loaded it."""
    nvidia = module_of(examination, "nvidia")
    if isinstance(nvidia, Unknown) or not is_present(nvidia):
        return False
    return isinstance(nvidia.on_disk, Unknown) and nvidia.on_disk.reason is Reason.NOT_THERE


@AREA.check(
    "peermem-not-on-disk-container",
    Severity.CRITICAL,
    "the driver comes from a container, and the container does not load nvidia_peermem",
    "NVIDIA GPU Operator, GPUDirect RDMA, https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/",
)
def peermem_not_on_disk_container(examination: Examination) -> Outcome:
    """A driver that runs without a file on the node: only its container can bring nvidia_peermem."""
    module = _no_file(examination)
    if isinstance(module, Outcome):
        return module
    evidence = Evidence("modinfo nvidia", "no file for the running kernel")
    if not _from_container(examination):
        return passed(Evidence("modinfo nvidia", "the driver is installed on the node, or does not run"))
    steps = (
        instruction(
            "GPU Operator: set driver.rdma.enabled=true, and useHostMofed=true where OFED is on the node"
        ),
        instruction("or take driver.kernelModuleType=open, and DMA-BUF in its place"),
    )
    return peermem_fault(
        examination,
        "nvidia is loaded and has no file on this node, so a driver container brought it, without "
        "nvidia_peermem",
        evidence,
        Evidence("/proc/modules", "nvidia: live"),
        fix=Plan(
            "Let the driver container load nvidia-peermem",
            steps,
            disturbs="the driver pod restarts: every job on the GPUs ends",
        ),
    )


@AREA.check(
    "peermem-not-on-disk-other-kernel",
    Severity.CRITICAL,
    "nvidia_peermem was built for another kernel only",
    "dkms(8), depmod(8)",
)
def peermem_not_on_disk_other_kernel(examination: Examination) -> Outcome:
    """As a rule the kernel was updated, and DKMS had no headers to build against."""
    module = _no_file(examination)
    if isinstance(module, Outcome):
        return module
    others = _elsewhere(examination)
    if isinstance(others, Unknown):
        return unsure(f"whether other kernels have the module is unknown: {others}")
    evidence = Evidence(modules_dep(examination), "no nvidia-peermem.ko")
    if not others:
        return passed(evidence, Evidence("/lib/modules", "no other kernel has it either"))
    steps = (*rebuild_plan(release_of(examination)).steps, load_step(examination, PEERMEM))
    return peermem_fault(
        examination,
        f"nvidia_peermem is there for {', '.join(others[:4])} and not for the running kernel",
        evidence,
        Evidence("find /lib/modules -name 'nvidia-peermem.ko*'", ", ".join(others[:SHOWN])),
        fix=Plan("Build the driver's modules for this kernel", steps, reversible=False),
    )


@AREA.check(
    "peermem-not-on-disk-old-driver",
    Severity.CRITICAL,
    "the NVIDIA driver is too old to bring nvidia_peermem",
    PEERMEM_MANUAL,
)
def peermem_not_on_disk_old_driver(examination: Examination) -> Outcome:
    """Drivers before 470 have no nvidia-peermem; they went with Mellanox's nv_peer_mem."""
    module = _no_file(examination)
    if isinstance(module, Outcome):
        return module
    numbers = _driver_numbers(examination)
    if isinstance(numbers, Unknown):
        return unsure(f"the driver's version is unknown: {numbers}")
    evidence = Evidence("/proc/driver/nvidia/version", ".".join(map(str, numbers)))
    if numbers >= _FIRST_WITH_PEERMEM:
        return passed(evidence)
    steps = (instruction("install a driver of 470 or newer; 515.43.04 and newer can do DMA-BUF as well"),)
    return peermem_fault(
        examination,
        "nvidia-peermem comes with the driver since 470",
        evidence,
        Evidence(modules_dep(examination), "no nvidia-peermem.ko"),
        fix=Plan("Install a newer driver", steps, reversible=False, disturbs=SWAP_ENDS_JOBS),
    )
