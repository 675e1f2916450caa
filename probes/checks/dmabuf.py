"""Why DMA-BUF cannot be used: one check for each thing that it needs of driver, GPU, kernel and NIC."""

from __future__ import annotations

from probes.checks.driver_version import DRIVER_VERSION, driver_version
from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.module_facts import no_ends, release_of
from probes.checks.wording import SHOWN, several
from probes.examination import Examination
from probes.gpudirect import GpuDirectFacts
from probes.gpus import Flavour
from probes.plan import Plan, instruction
from probes.plans.interruptions import REBOOT_ENDS_JOBS, SWAP_ENDS_JOBS
from probes.rdma import RdmaFacts
from probes.unknown import Maybe, Reason, Unknown

AREA = Area("path")

_MANUAL = "NVIDIA GPUDirect RDMA manual, https://docs.nvidia.com/cuda/gpudirect-rdma/"
_OPEN_MANUAL = (
    "NVIDIA driver README, Open Linux Kernel Modules, https://download.nvidia.com/XFree86/Linux-x86_64/"
)
_PROBE = "https://github.com/NVIDIA/nccl, src/transport/net_ib/gdr.cc; ibv_reg_dmabuf_mr(3)"
_FIRST_OPEN_DRIVER, _FIRST_KERNEL, _OLDEST_GPU = (515, 43, 4), (5, 12), (7, 5)


def _cost(examination: Examination) -> Severity:
    """A lack of DMA-BUF: a note where nvidia-peermem works, critical where it does not."""
    direct = examination.node.gpudirect
    usable: Maybe[bool] = direct if isinstance(direct, Unknown) else direct.peermem.usable
    if isinstance(usable, Unknown):
        return Severity.WARNING
    return Severity.NOTE if usable else Severity.CRITICAL


def _or_peermem(examination: Examination) -> str:
    """The end of a cause: what is left."""
    return {
        Severity.NOTE: "; GPUDirect RDMA works through nvidia-peermem meanwhile",
        Severity.CRITICAL: "; nvidia-peermem cannot be used either",
    }.get(_cost(examination), "")


@AREA.check(
    "dmabuf-needs-open-module",
    Severity.WARNING,
    "the closed NVIDIA kernel modules are installed: they export no GPU memory by DMA-BUF",
    _OPEN_MANUAL,
)
def dmabuf_needs_open_module(examination: Examination) -> Outcome:
    """The flavour of the driver that is loaded."""
    aside = no_ends(examination)
    if aside is not None:
        return aside
    gpus = examination.node.gpus
    flavour = gpus if isinstance(gpus, Unknown) else gpus.driver.flavour
    if isinstance(flavour, Unknown):
        if flavour.reason is Reason.NOT_THERE:
            return passed(Evidence(DRIVER_VERSION, "not there: see nvidia-not-loaded"))
        return unsure(f"which flavour of the driver is loaded is unknown: {flavour}")
    seen = Evidence(DRIVER_VERSION, f"{flavour.value} kernel modules")
    if flavour is Flavour.OPEN:
        return passed(seen)
    assert not isinstance(gpus, Unknown)
    old = _old_gpus(examination)
    if not isinstance(old, Unknown) and old and len(old) == len(gpus.gpus):
        return passed(seen, Evidence("nvidia-smi --query-gpu=compute_cap", "too old for the open modules"))
    steps = (
        instruction(
            "install the open kernel modules (nvidia-open; GPU Operator: driver.kernelModuleType=open)"
        ),
        instruction("reboot, or exchange the modules once nothing uses a GPU"),
    )
    return found(
        f"CUDA memory can be exported by DMA-BUF with the open kernel modules only{_or_peermem(examination)}",
        seen,
        fix=Plan("Install the open kernel modules", steps, needs_reboot=True, disturbs=SWAP_ENDS_JOBS),
        severity=_cost(examination),
        devices=("nvidia",),
    )


def _old_gpus(examination: Examination) -> Maybe[tuple[tuple[str, str], ...]]:
    """(BDF, name and capability) of the GPUs that the open modules do not serve."""
    gpus = examination.node.gpus
    if isinstance(gpus, Unknown):
        return gpus
    old = []
    for gpu in gpus.gpus:
        capability = gpu.compute_capability
        if isinstance(capability, Unknown):
            return capability
        if capability < _OLDEST_GPU:
            old.append((gpu.bdf, f"GPU{gpu.index} {gpu.name}: {capability[0]}.{capability[1]}"))
    return tuple(old)


@AREA.check(
    "dmabuf-gpu-too-old",
    Severity.WARNING,
    "a GPU is too old for the open kernel modules, and so for DMA-BUF",
    _OPEN_MANUAL,
)
def dmabuf_gpu_too_old(examination: Examination) -> Outcome:
    """Compute capability below 7.5: Volta and what came before it."""
    aside = no_ends(examination)
    if aside is not None:
        return aside
    old = _old_gpus(examination)
    source = "nvidia-smi --query-gpu=compute_cap --format=csv"
    if isinstance(old, Unknown):
        return unsure(f"the compute capability of the GPUs is unknown: {old}")
    if not old:
        return passed(Evidence(source, "7.5 or newer"))
    steps = (instruction("take the closed driver, OFED and nvidia-peermem: the only way for these GPUs"),)
    return found(
        f"the open kernel modules serve GPUs from Turing (7.5) on{_or_peermem(examination)}",
        *(Evidence(source, what) for _, what in old[:SHOWN]),
        fix=Plan("Use nvidia-peermem", steps, disturbs=SWAP_ENDS_JOBS),
        severity=_cost(examination),
        devices=tuple(bdf for bdf, _ in old[:SHOWN]),
    )


@AREA.check(
    "dmabuf-driver-too-old",
    Severity.WARNING,
    "the NVIDIA driver is older than 515.43.04, the first with DMA-BUF",
    "https://github.com/NVIDIA/open-gpu-kernel-modules, kernel-open/nvidia/nv-dmabuf.c",
)
def dmabuf_driver_too_old(examination: Examination) -> Outcome:
    """The version of the driver that is loaded."""
    aside = no_ends(examination)
    if aside is not None:
        return aside
    driver = driver_version(examination)
    if isinstance(driver, Outcome):
        return driver
    version, numbers = driver
    if numbers >= _FIRST_OPEN_DRIVER:
        return passed(Evidence(DRIVER_VERSION, version))
    steps = (instruction("install a current driver with the open kernel modules"),)
    return found(
        f"this driver has no DMA-BUF at all{_or_peermem(examination)}",
        Evidence(DRIVER_VERSION, version),
        fix=Plan(
            "Install a newer driver", steps, reversible=False, needs_reboot=True, disturbs=SWAP_ENDS_JOBS
        ),
        severity=_cost(examination),
        devices=("nvidia",),
    )


def _answers(examination: Examination) -> dict[str, Maybe[bool]]:
    direct = examination.node.gpudirect
    return direct.nic_dmabuf if isinstance(direct, GpuDirectFacts) else {}


def _refusing(examination: Examination) -> tuple[str, ...]:
    return tuple(
        nic for nic, answer in _answers(examination).items() if not isinstance(answer, Unknown) and not answer
    )


def _taking(examination: Examination) -> tuple[str, ...]:
    return tuple(
        nic for nic, answer in _answers(examination).items() if not isinstance(answer, Unknown) and answer
    )


def _probe_evidence(nics: tuple[str, ...], says: str) -> Evidence:
    return Evidence("ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0)", f"{says} on {several(nics)}")


@AREA.check(
    "dmabuf-kernel-too-old",
    Severity.WARNING,
    "the kernel is older than 5.12, and no OFED brings DMA-BUF to it",
    _MANUAL,
)
def dmabuf_kernel_too_old(examination: Examination) -> Outcome:
    """What the NICs answer decides; the release is the reason. Kernel 6 is not needed."""
    aside = no_ends(examination)
    if aside is not None:
        return aside
    kernel = examination.node.kernel
    version = kernel if isinstance(kernel, Unknown) else kernel.version
    seen = Evidence("/proc/sys/kernel/osrelease", release_of(examination))
    taking, refusing = _taking(examination), _refusing(examination)
    if taking:
        return passed(_probe_evidence(taking, "taken"), seen)
    if isinstance(version, Unknown):
        return unsure(f"the kernel's release is unknown: {version}")
    if version >= _FIRST_KERNEL:
        return passed(seen)
    if not refusing:
        return unsure("OFED may have brought DMA-BUF to this kernel: needs an answer of a NIC", seen)
    steps = (
        instruction("boot a kernel of 5.12 or newer, or install an OFED that brings DMA-BUF to this one"),
        instruction("until then use nvidia-peermem, with OFED"),
    )
    return found(
        f"regions of DMA-BUF came to the RDMA stack with Linux 5.12{_or_peermem(examination)}",
        seen,
        _probe_evidence(refusing, "not supported"),
        fix=Plan("Update the kernel", steps, needs_reboot=True, disturbs=REBOOT_ENDS_JOBS),
        severity=_cost(examination),
    )


@AREA.check(
    "dmabuf-kernel-config",
    Severity.WARNING,
    "the kernel was built without CONFIG_DMA_SHARED_BUFFER",
    "Linux Documentation/driver-api/dma-buf.rst",
)
def dmabuf_kernel_config(examination: Examination) -> Outcome:
    """The kernel's config; dma-buf is part of the kernel, and never a line of /proc/modules."""
    aside = no_ends(examination)
    if aside is not None:
        return aside
    kernel = examination.node.kernel
    configured = kernel if isinstance(kernel, Unknown) else kernel.dma_shared_buffer
    source = f"/boot/config-{release_of(examination)}"
    taking = _taking(examination)
    if taking:
        return passed(_probe_evidence(taking, "taken"))
    if isinstance(configured, Unknown):
        return unsure(f"needs the kernel's config: {configured}")
    if configured:
        return passed(Evidence(source, "CONFIG_DMA_SHARED_BUFFER=y"))
    steps = (
        instruction("boot a kernel of the distribution, or build this one with a driver that selects it"),
    )
    return found(
        f"without it neither the GPU driver nor the NIC's knows DMA-BUF{_or_peermem(examination)}",
        Evidence(source, "CONFIG_DMA_SHARED_BUFFER is not set"),
        fix=Plan("Boot another kernel", steps, needs_reboot=True, disturbs=REBOOT_ENDS_JOBS),
        severity=_cost(examination),
    )


@AREA.check(
    "dmabuf-nic-driver-lacks-support",
    Severity.WARNING,
    "the driver of a NIC takes no DMA-BUF regions",
    _PROBE,
)
def dmabuf_nic_driver_lacks_support(examination: Examination) -> Outcome:
    """What each NIC answers to the question NCCL asks it, one by one."""
    aside = no_ends(examination)
    if aside is not None:
        return aside
    direct, answers = examination.node.gpudirect, _answers(examination)
    if isinstance(direct, Unknown):
        return unsure(f"what the NICs answer is unknown: {direct}")
    refusing, taking = _refusing(examination), _taking(examination)
    if not refusing:
        unknown = [answer for answer in answers.values() if isinstance(answer, Unknown)]
        if unknown:
            return unsure(f"needs read and write access to /dev/infiniband/uverbsN: {unknown[0]}")
        rdma = examination.node.rdma
        if isinstance(rdma, Unknown) and rdma.reason is not Reason.NOT_THERE:
            return unsure(f"which RDMA devices there are is unknown: {rdma}")
        if not answers:
            return passed(Evidence("/sys/class/infiniband", "no RDMA device of hardware here"))
        return passed(_probe_evidence(taking, "taken"))
    kernel = examination.node.kernel
    if not taking and not isinstance(kernel, Unknown):
        version = kernel.version
        old = not isinstance(version, Unknown) and version < _FIRST_KERNEL
        lacking = not isinstance(kernel.dma_shared_buffer, Unknown) and not kernel.dma_shared_buffer
        if old or lacking:
            return passed(
                _probe_evidence(refusing, "not supported"), Evidence("kernel", "cannot do it for any NIC")
            )
    steps = (
        instruction(
            "update the driver of this NIC (OFED or kernel), and rdma-core here and in the jobs' images"
        ),
        instruction("until then keep it out of NCCL_IB_HCA, or use OFED with nvidia-peermem"),
    )
    cost = _cost(examination)
    others = f", and {', '.join(taking[:SHOWN])} can" if taking else ""
    return found(
        f"{', '.join(refusing[:SHOWN])} cannot reach GPU memory by DMA-BUF{others}{_or_peermem(examination)}",
        *(
            Evidence(
                f"/sys/class/infiniband/{nic}/device/driver", f"{_driver(examination, nic)}: not supported"
            )
            for nic in refusing[:SHOWN]
        ),
        fix=Plan("Update the NIC's driver", steps, disturbs="every RDMA program"),
        # The others still work: slower for the GPUs near this NIC, not broken.
        severity=Severity.WARNING if taking and cost is Severity.CRITICAL else cost,
        devices=refusing,
    )


def _driver(examination: Examination, nic: str) -> str:
    rdma = examination.node.rdma
    devices = rdma.devices if isinstance(rdma, RdmaFacts) else ()
    return next((str(one.driver) for one in devices if one.name == nic), "unknown driver")
