"""nvidia_peermem is not loaded: its file exists, exists for another kernel only, or is missing."""

from __future__ import annotations

from probes.base.evidence import Evidence
from probes.base.plan import Plan, instruction, make_plan
from probes.base.text import SHOWN
from probes.base.unknown import Maybe, Unknown, is_there, map_known, parse_known
from probes.facts.gpudirect import parse_driver_version
from probes.facts.kernel.module_files import DRIVER_PACKAGES
from probes.facts.kernel.modules import PEERMEM
from probes.plans.common import POD_ENDS_JOBS, SWAP_ENDS_JOBS
from probes.plans.driver import rebuild_plan
from probes.plans.load_modules import blocker_of, load_plan, load_step
from probes.plans.packages import open_driver_steps
from probes.queries.finding import STAGED, Area, CheckEnded, Outcome, need, passed
from probes.queries.kernel_log import P2P_REFUSALS
from probes.queries.module_need import PEERMEM_REASONS, absent_peermem, peermem_fault
from probes.queries.modules import (
    DRIVER_VERSION,
    LINE_LIMIT,
    PEERMEM_MANUAL,
    is_present,
    module_of,
    modules_dep,
    release_of,
    state_evidence,
)
from probes.snapshot.examination import Examination

AREA = Area("modules")

_FIRST_WITH_PEERMEM = (470, 0, 0)
_FILE, _OTHERS = "the nvidia_peermem file (/lib/modules)", "the modules of other kernels"


def _driver_numbers(examination: Examination) -> Maybe[tuple[int, int, int]]:
    version = map_known(examination.node.gpus, lambda gpus: gpus.driver.version)
    return parse_known(version, parse_driver_version, DRIVER_VERSION)


@AREA.critical(
    "peermem-not-loaded",
    "nvidia_peermem is not loaded",
    "NCCL troubleshooting guide, https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    ok="nvidia_peermem is loaded if it is installed and needed",
    impact=STAGED,
    part_of=P2P_REFUSALS,
)
def peermem_not_loaded(examination: Examination) -> Outcome:
    """Check that it is loaded; no fault where DMA-BUF is usable and no configuration names the module."""
    module = absent_peermem(examination)
    no_file = Evidence(modules_dep(examination), "no nvidia_peermem: see peermem-not-on-disk")
    path = need(module.on_disk, _FILE, state_evidence(module), absent=no_file)
    blocker = blocker_of(examination, PEERMEM)
    return peermem_fault(
        examination,
        "No device triggers it, so udev never loads nvidia_peermem. Load it explicitly (modules-load.d)."
        if blocker is None
        else f"nvidia_peermem cannot be loaded ({blocker[:LINE_LIMIT]}).",
        state_evidence(module),
        Evidence("modinfo -n nvidia_peermem", path),
        fix=load_plan(examination, PEERMEM) if blocker is None else None,
        part_of=(*PEERMEM_REASONS, "boot-load-race", "peermem-lost-after-driver-update"),
    )


def _require_no_file(examination: Examination) -> None:
    """End the check unless nvidia_peermem is not loaded and has no file for this kernel."""
    module = absent_peermem(examination)
    if is_there(module.on_disk) is False:
        return
    path = need(module.on_disk, _FILE, state_evidence(module))
    raise CheckEnded(passed(Evidence("modinfo -n nvidia_peermem", path)))


def _other_kernels(examination: Examination) -> Maybe[tuple[str, ...]]:
    """Return the other kernels that have the module, from depmod and the driver's DKMS packages."""
    facts, dkms = examination.module_files, examination.dkms
    if isinstance(facts, Unknown):
        return facts
    kernels = dict.fromkeys(facts.elsewhere)
    if not isinstance(dkms, Unknown):
        for package in dkms.modules:
            if package.name in DRIVER_PACKAGES:
                kernels.update(dict.fromkeys((*package.built, *package.installed)))
    kernels.pop(release_of(examination), None)
    return tuple(kernels)


@AREA.critical(
    "peermem-not-on-disk",
    "nvidia_peermem is not installed for any kernel",
    PEERMEM_MANUAL,
    ok="nvidia_peermem is in the driver package or not expected there",
    impact=STAGED,
)
def peermem_not_on_disk(examination: Examination) -> Outcome:
    """Check for a driver package of 470 or newer that leaves the module out."""
    _require_no_file(examination)
    evidence = Evidence(modules_dep(examination), "no nvidia-peermem.ko")
    if need(_other_kernels(examination), _OTHERS):
        return passed(evidence, Evidence("/lib/modules", "other kernels have it"))
    if _from_container(examination):
        return passed(evidence, Evidence("modinfo nvidia", "no file: the driver comes from a container"))
    numbers = _driver_numbers(examination)
    if not isinstance(numbers, Unknown) and numbers < _FIRST_WITH_PEERMEM:
        return passed(evidence, Evidence(DRIVER_VERSION, "older than 470, the first with nvidia_peermem"))
    steps = (
        instruction("Install the NVIDIA driver's DKMS package, or another package with nvidia-peermem"),
        load_step(examination, PEERMEM),
    )
    return peermem_fault(
        examination,
        "The driver package in use does not contain nvidia-peermem.ko.",
        evidence,
        fix=Plan("Install nvidia-peermem", steps),
    )


def _from_container(examination: Examination) -> bool:
    """Return whether the driver runs without a file on this node: a driver container loaded it."""
    nvidia = module_of(examination, "nvidia")
    return not isinstance(nvidia, Unknown) and is_present(nvidia) and is_there(nvidia.on_disk) is False


@AREA.critical(
    "peermem-not-on-disk-container",
    "The driver container does not load nvidia_peermem",
    "NVIDIA GPU Operator, GPUDirect RDMA, https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/",
    ok="No driver container omits nvidia_peermem",
    impact=STAGED,
)
def peermem_not_on_disk_container(examination: Examination) -> Outcome:
    """Check for a driver that runs without a file on the node: only its container has nvidia_peermem."""
    _require_no_file(examination)
    if not _from_container(examination):
        return passed(Evidence("modinfo nvidia", "the driver is installed on the node, or is not running"))
    return peermem_fault(
        examination,
        "A driver container loaded nvidia (no module file on this node), but not nvidia_peermem.",
        Evidence("modinfo nvidia", "no file for the running kernel"),
        Evidence("/proc/modules", "nvidia: live"),
        fix=make_plan(
            "Let the driver container load nvidia-peermem",
            "GPU Operator: set driver.rdma.enabled=true, and useHostMofed=true if OFED is on the node",
            "Or set driver.kernelModuleType=open and use DMA-BUF instead",
            disturbs=POD_ENDS_JOBS,
        ),
    )


@AREA.critical(
    "peermem-not-on-disk-other-kernel",
    "nvidia_peermem is installed for another kernel only",
    "dkms(8), depmod(8)",
    ok="No kernel update left nvidia_peermem behind",
    impact=STAGED,
)
def peermem_not_on_disk_other_kernel(examination: Examination) -> Outcome:
    """Check for a kernel update without a rebuild; usually DKMS had no headers to build against."""
    _require_no_file(examination)
    others = need(_other_kernels(examination), _OTHERS)
    evidence = Evidence(modules_dep(examination), "no nvidia-peermem.ko")
    if not others:
        return passed(evidence, Evidence("/lib/modules", "no other kernel has it"))
    steps = (*rebuild_plan(examination, release_of(examination), True).steps, load_step(examination, PEERMEM))
    return peermem_fault(
        examination,
        f"nvidia_peermem was built for {', '.join(others[:4])}, not for the running kernel.",
        evidence,
        Evidence("find /lib/modules -name 'nvidia-peermem.ko*'", ", ".join(others[:SHOWN])),
        fix=Plan("Build the driver's modules for this kernel", steps),
    )


@AREA.critical(
    "peermem-not-on-disk-old-driver",
    "The NVIDIA driver is too old for nvidia_peermem",
    PEERMEM_MANUAL,
    ok="The NVIDIA driver is new enough for nvidia_peermem, or does not need it",
    impact=STAGED,
)
def peermem_not_on_disk_old_driver(examination: Examination) -> Outcome:
    """Check for drivers before 470, which need Mellanox's nv_peer_mem instead."""
    _require_no_file(examination)
    numbers = need(_driver_numbers(examination), DRIVER_VERSION)
    evidence = Evidence(DRIVER_VERSION, ".".join(map(str, numbers)))
    if numbers >= _FIRST_WITH_PEERMEM:
        return passed(evidence)
    return peermem_fault(
        examination,
        "nvidia_peermem has been part of the driver since 470.",
        evidence,
        Evidence(modules_dep(examination), "no nvidia-peermem.ko"),
        fix=make_plan("Install a newer driver", *open_driver_steps(examination), disturbs=SWAP_ENDS_JOBS),
    )
