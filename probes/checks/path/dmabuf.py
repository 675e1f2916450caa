"""Why DMA-BUF is not usable: one check for each thing it needs of driver, GPU, kernel and NIC."""

from __future__ import annotations

from probes.base.plan import Plan, Step, instruction
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpu.gpus import Flavour
from probes.facts.gpudirect import GpuDirectFacts
from probes.facts.rdma.devices import RdmaFacts
from probes.plans.common import REBOOT_ENDS_JOBS, SWAP_ENDS_JOBS
from probes.queries.evidence_list import SHOWN, STAGED, join_limited
from probes.queries.finding import Area, Evidence, Outcome, Severity, found, passed, unknown, unknown_without
from probes.queries.module_need import OLDEST_OPEN_GPU, PEERMEM_MISSING, dmabuf_comes_first
from probes.queries.modules import (
    DMABUF,
    DRIVER_VERSION,
    driver_version,
    has_efa_only,
    module_of,
    no_gpu_or_rdma_device,
    peer_nics,
    release_of,
)
from probes.snapshot.examination import Examination

AREA = Area("path")

_MANUAL = "NVIDIA GPUDirect RDMA manual, https://docs.nvidia.com/cuda/gpudirect-rdma/"
_OPEN_MANUAL = (
    "NVIDIA driver README, Open Linux Kernel Modules, https://download.nvidia.com/XFree86/Linux-x86_64/"
)
_PROBE = "https://github.com/NVIDIA/nccl, src/transport/net_ib/gdr.cc; ibv_reg_dmabuf_mr(3)"
_FIRST_OPEN_DRIVER, _FIRST_KERNEL = (515, 43, 4), (5, 12)
_EVERY_PROGRAM = "every RDMA program"
_CONFIG, _GPUS = "the kernel config", "the compute capability of the GPUs"


def _serves_peermem(examination: Examination) -> bool:
    """Return whether this node has a NIC that nvidia_peermem can serve."""
    return peer_nics(examination) != ()


def _cost(examination: Examination) -> Severity:
    """Return what it costs to have no DMA-BUF: a note where nvidia_peermem works, critical where not."""
    direct = examination.node.gpudirect
    usable: Maybe[bool] = direct if isinstance(direct, Unknown) else direct.peermem.usable
    if not _serves_peermem(examination):
        return Severity.CRITICAL
    if isinstance(usable, Unknown):
        return Severity.WARNING
    return Severity.NOTE if usable else Severity.CRITICAL


def _or_peermem(examination: Examination) -> str:
    """Return the end of a cause: what is left without DMA-BUF."""
    if not _serves_peermem(examination):
        return " nvidia_peermem does not serve the NICs of this node."
    return {
        Severity.NOTE: " GPUDirect RDMA works through nvidia_peermem meanwhile.",
        Severity.CRITICAL: " nvidia_peermem is not usable either.",
    }.get(_cost(examination), "")


def _impact(examination: Examination) -> str:
    return "None while nvidia_peermem works." if _cost(examination) is Severity.NOTE else STAGED


def _roots(examination: Examination, *first: str) -> tuple[str, ...]:
    """Return the ids of the possible roots: `first`, then nvidia_peermem where it is the easier fix."""
    return first if dmabuf_comes_first(examination) else (*first, *PEERMEM_MISSING)


def _aside(examination: Examination) -> Outcome | None:
    """Return the outcome for a node without GPU and NIC, or with EFA only, which has its own peer module."""
    aside = no_gpu_or_rdma_device(examination)
    if aside is not None:
        return aside
    if has_efa_only(examination):
        return passed(Evidence("/sys/class/infiniband/*/device/driver", "efa, with its own peer module"))
    return None


@AREA.check(
    "dmabuf-needs-open-module",
    Severity.WARNING,
    "The proprietary NVIDIA kernel modules do not support DMA-BUF",
    _OPEN_MANUAL,
    ok="No proprietary NVIDIA kernel modules block DMA-BUF",
    impact=STAGED,
)
def dmabuf_needs_open_module(examination: Examination) -> Outcome:
    """Check the flavor of the loaded driver."""
    aside = _aside(examination)
    if aside is not None:
        return aside
    gpus = examination.node.gpus
    flavour = gpus if isinstance(gpus, Unknown) else gpus.driver.flavour
    if isinstance(flavour, Unknown):
        if flavour.reason is Reason.NOT_THERE:
            return passed(Evidence(DRIVER_VERSION, "not there: the driver is not loaded"))
        return unknown_without(DRIVER_VERSION, flavour)
    seen = Evidence(DRIVER_VERSION, f"{flavour.value} kernel modules")
    if flavour is Flavour.OPEN:
        return passed(seen)
    assert not isinstance(gpus, Unknown)
    old = _old_gpus(examination)
    if not isinstance(old, Unknown) and old and len(old) == len(gpus.gpus):
        return passed(seen, Evidence("nvidia-smi --query-gpu=compute_cap", "too old for the open modules"))
    steps = (
        instruction(
            "Install the open kernel modules (nvidia-open; GPU Operator: driver.kernelModuleType=open)"
        ),
        instruction("Reboot, or reload the modules once nothing uses a GPU"),
    )
    return found(
        f"Only the open kernel modules can export CUDA memory by DMA-BUF.{_or_peermem(examination)}",
        seen,
        fix=Plan("Install the open kernel modules", steps, needs_reboot=True, disturbs=SWAP_ENDS_JOBS),
        severity=_cost(examination),
        impact=_impact(examination),
        part_of=_roots(examination, "dmabuf-driver-too-old"),
    )


def _old_gpus(examination: Examination) -> Maybe[tuple[tuple[str, str], ...]]:
    """Return (BDF, name and capability) of the GPUs that the open modules do not serve."""
    gpus = examination.node.gpus
    if isinstance(gpus, Unknown):
        return gpus
    old = []
    for gpu in gpus.gpus:
        capability = gpu.compute_capability
        if isinstance(capability, Unknown):
            return capability
        if capability < OLDEST_OPEN_GPU:
            old.append((gpu.bdf, f"GPU{gpu.index} {gpu.name}: {capability[0]}.{capability[1]}"))
    return tuple(old)


@AREA.check(
    "dmabuf-gpu-too-old",
    Severity.WARNING,
    "A GPU is too old for DMA-BUF",
    _OPEN_MANUAL,
    ok="Every GPU is new enough for DMA-BUF",
    impact=STAGED,
)
def dmabuf_gpu_too_old(examination: Examination) -> Outcome:
    """Check for a compute capability below 7.5: Volta and older."""
    aside = _aside(examination)
    if aside is not None:
        return aside
    old = _old_gpus(examination)
    source = "nvidia-smi --query-gpu=compute_cap --format=csv"
    if isinstance(old, Unknown):
        return unknown_without(_GPUS, old)
    if not old:
        return passed(Evidence(source, "7.5 or newer"))
    steps = (
        instruction("Use the proprietary driver, OFED and nvidia_peermem: the only path for these GPUs"),
    )
    return found(
        "DMA-BUF needs the open kernel modules, which serve GPUs from Turing (7.5) on."
        f"{_or_peermem(examination)}",
        *(Evidence(source, what) for _, what in old[:SHOWN]),
        fix=Plan("Use nvidia-peermem", steps, disturbs=SWAP_ENDS_JOBS),
        severity=_cost(examination),
        devices=tuple(bdf for bdf, _ in old[:SHOWN]),
        impact=_impact(examination),
        part_of=("gpu-too-old-for-gdr", *PEERMEM_MISSING),
    )


@AREA.check(
    "dmabuf-driver-too-old",
    Severity.WARNING,
    "The NVIDIA driver is too old for DMA-BUF",
    "https://github.com/NVIDIA/open-gpu-kernel-modules, kernel-open/nvidia/nv-dmabuf.c",
    ok="No driver that is too old for DMA-BUF is loaded",
    impact=STAGED,
)
def dmabuf_driver_too_old(examination: Examination) -> Outcome:
    """Check the version of the loaded driver; DMA-BUF came with 515.43.04."""
    aside = _aside(examination)
    if aside is not None:
        return aside
    version, numbers = driver_version(examination)
    if numbers >= _FIRST_OPEN_DRIVER:
        return passed(Evidence(DRIVER_VERSION, version))
    steps = (instruction("Install a current driver with the open kernel modules"),)
    return found(
        f"DMA-BUF came with driver 515.43.04; this one is {version}.{_or_peermem(examination)}",
        Evidence(DRIVER_VERSION, version),
        fix=Plan(
            "Install a newer driver", steps, reversible=False, needs_reboot=True, disturbs=SWAP_ENDS_JOBS
        ),
        severity=_cost(examination),
        impact=_impact(examination),
        part_of=_roots(examination, "peermem-not-on-disk-old-driver"),
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
    return Evidence("ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0)", f"{says} on {join_limited(nics)}")


@AREA.check(
    "dmabuf-kernel-too-old",
    Severity.WARNING,
    "The kernel is too old for DMA-BUF",
    _MANUAL,
    ok="The kernel is new enough for DMA-BUF, or OFED adds it",
    impact=STAGED,
)
def dmabuf_kernel_too_old(examination: Examination) -> Outcome:
    """Check the release where no NIC takes DMA-BUF; 5.12 is enough, and OFED adds it to older kernels."""
    aside = _aside(examination)
    if aside is not None:
        return aside
    kernel = examination.node.kernel
    version = kernel if isinstance(kernel, Unknown) else kernel.version
    seen = Evidence("/proc/sys/kernel/osrelease", release_of(examination))
    taking, refusing = _taking(examination), _refusing(examination)
    if taking:
        return passed(_probe_evidence(taking, "supported"), seen)
    if isinstance(version, Unknown):
        return unknown_without("the release of the running kernel", version)
    if version >= _FIRST_KERNEL:
        return passed(seen)
    if not refusing:
        missing = next((one for one in _answers(examination).values() if isinstance(one, Unknown)), None)
        if missing is None:
            return unknown(f"needs {DMABUF}", seen)
        return unknown_without(DMABUF, missing, seen)
    steps = (
        instruction("Boot kernel 5.12 or newer, or install an OFED that adds DMA-BUF to this one"),
        *_until_then(examination),
    )
    return found(
        f"The RDMA stack registers DMA-BUF memory from Linux 5.12 on.{_or_peermem(examination)}",
        seen,
        _probe_evidence(refusing, "not supported"),
        fix=Plan("Update the kernel", steps, needs_reboot=True, disturbs=REBOOT_ENDS_JOBS),
        severity=_cost(examination),
        impact=_impact(examination),
        part_of=_roots(examination),
    )


@AREA.check(
    "dmabuf-kernel-config",
    Severity.WARNING,
    "The kernel was built without CONFIG_DMA_SHARED_BUFFER",
    "Linux Documentation/driver-api/dma-buf.rst",
    ok="The kernel was built with DMA-BUF",
    impact=STAGED,
)
def dmabuf_kernel_config(examination: Examination) -> Outcome:
    """Check the kernel config; dma-buf is part of the kernel and never listed in /proc/modules."""
    aside = _aside(examination)
    if aside is not None:
        return aside
    kernel = examination.node.kernel
    configured = kernel if isinstance(kernel, Unknown) else kernel.dma_shared_buffer
    source = f"/boot/config-{release_of(examination)}"
    taking = _taking(examination)
    if taking:
        return passed(_probe_evidence(taking, "supported"))
    if isinstance(configured, Unknown):
        return unknown_without(_CONFIG, configured)
    if configured:
        return passed(Evidence(source, "CONFIG_DMA_SHARED_BUFFER=y"))
    steps = (instruction("Boot a kernel of the distribution, or build this one with the option"),)
    return found(
        f"Without it neither the GPU driver nor the NIC driver has DMA-BUF.{_or_peermem(examination)}",
        Evidence(source, "CONFIG_DMA_SHARED_BUFFER is not set"),
        fix=Plan("Boot another kernel", steps, needs_reboot=True, disturbs=REBOOT_ENDS_JOBS),
        severity=_cost(examination),
        impact=_impact(examination),
        part_of=_roots(examination, "dmabuf-kernel-too-old"),
    )


def _until_then(examination: Examination) -> tuple[Step, ...]:
    """Return the step that uses nvidia_peermem meanwhile, where the node has a NIC that it can serve."""
    return (instruction("Until then use nvidia_peermem, with OFED"),) if _serves_peermem(examination) else ()


@AREA.check(
    "dmabuf-nic-driver-lacks-support",
    Severity.WARNING,
    "A NIC does not support DMA-BUF",
    _PROBE,
    ok="No NIC driver is missing DMA-BUF support",
    impact="GPUs near this NIC send and receive through host memory or through another NIC.",
    data_path=True,
)
def dmabuf_nic_driver_lacks_support(examination: Examination) -> Outcome:
    """Check what each NIC answers to the DMA-BUF probe of NCCL; the kernel config explains it for mlx5."""
    aside = _aside(examination)
    if aside is not None:
        return aside
    direct, answers = examination.node.gpudirect, _answers(examination)
    if isinstance(direct, Unknown):
        return unknown_without(DMABUF, direct)
    refusing, taking = _refusing(examination), _taking(examination)
    if not refusing:
        unknowns = [answer for answer in answers.values() if isinstance(answer, Unknown)]
        if unknowns:
            return unknown_without(f"{DMABUF} on /dev/infiniband/uverbsN", unknowns[0])
        rdma = examination.node.rdma
        if isinstance(rdma, Unknown) and rdma.reason is not Reason.NOT_THERE:
            return unknown_without("the RDMA devices", rdma)
        if not answers:
            return passed(Evidence("/sys/class/infiniband", "no hardware RDMA device here"))
        return passed(_probe_evidence(taking, "supported"))
    kernel = examination.node.kernel
    if not taking and not isinstance(kernel, Unknown):
        version = kernel.version
        old = not isinstance(version, Unknown) and version < _FIRST_KERNEL
        if old or kernel.dma_shared_buffer is False:
            return passed(
                _probe_evidence(refusing, "not supported"), Evidence("kernel", "no DMA-BUF for any NIC")
            )
    cause, plan, seen = _why_refused(examination, refusing)
    cost = _cost(examination)
    return found(
        f"{cause}{_or_peermem(examination)}",
        *(
            Evidence(
                f"/sys/class/infiniband/{nic}/device/driver", f"{_driver(examination, nic)}: not supported"
            )
            for nic in refusing[:SHOWN]
        ),
        *seen,
        fix=plan,
        # While others support it, this costs bandwidth and is not broken.
        severity=Severity.WARNING if taking and cost is Severity.CRITICAL else cost,
        devices=refusing,
        impact="" if taking and cost is not Severity.NOTE else _impact(examination),
        part_of=_roots(examination),
    )


def _why_refused(
    examination: Examination, refusing: tuple[str, ...]
) -> tuple[str, Plan, tuple[Evidence, ...]]:
    """Return why these NICs refuse, by driver and kernel config, with the fix and its evidence."""
    names = join_limited(refusing)
    drivers = {_driver(examination, nic) for nic in refusing}
    kernel, module = examination.node.kernel, module_of(examination, "mlx5_ib")
    if drivers == {"mlx4_core"}:
        steps: tuple[Step, ...] = (
            instruction("Use nvidia_peermem with MLNX_OFED 4.9 LTS, the last one for ConnectX-3"),
            instruction("Or replace the card by ConnectX-4 or newer"),
        )
        cause = f"ConnectX-3 and older cards have no DMA-BUF: mlx4_ib never got it. Here: {names}."
        return cause, Plan("Use nvidia_peermem", steps, disturbs=_EVERY_PROGRAM), ()
    # OFED builds its mlx5_ib with its own configuration: there the kernel's says nothing.
    inbox = not isinstance(module, Unknown) and module.origin == "kernel"
    if drivers == {"mlx5_core"} and inbox and not isinstance(kernel, Unknown) and kernel.mlx5_dmabuf is False:
        options = "CONFIG_INFINIBAND_USER_MEM and CONFIG_INFINIBAND_ON_DEMAND_PAGING"
        steps = (
            instruction(f"Boot a kernel that has {options}, or install OFED with its own mlx5_ib"),
            *_until_then(examination),
        )
        seen = Evidence(f"/boot/config-{release_of(examination)}", f"not both of {options}")
        cause = f"The kernel was built without {options}, and mlx5_ib needs both for DMA-BUF."
        plan = Plan("Boot another kernel", steps, needs_reboot=True, disturbs=REBOOT_ENDS_JOBS)
        return cause, plan, (seen,)
    steps = (
        instruction("Update the driver of this NIC, and rdma-core here and in the jobs' images"),
        instruction("Until then keep it out of NCCL_IB_HCA"),
        *_until_then(examination),
    )
    cause = f"The driver of {names} cannot register DMA-BUF memory."
    return cause, Plan("Update the NIC driver", steps, disturbs=_EVERY_PROGRAM), ()


def _driver(examination: Examination, nic: str) -> str:
    rdma = examination.node.rdma
    devices = rdma.devices if isinstance(rdma, RdmaFacts) else ()
    return next((str(one.driver) for one in devices if one.name == nic), "unknown driver")
