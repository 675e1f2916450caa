"""Why DMA-BUF is not usable: one check for each requirement of driver, GPU, kernel and NIC."""

from __future__ import annotations

from probes.base.evidence import Evidence, Severity
from probes.base.plan import Plan, Step, instruction, make_plan
from probes.base.text import SHOWN, join_limited
from probes.base.unknown import Maybe, Unknown, map_known
from probes.facts.gpu.generations import TURING, is_before
from probes.facts.gpu.gpus import Flavor
from probes.facts.gpudirect import GpuDirectFacts, parse_driver_version
from probes.facts.pci.nic_families import NO_DMABUF
from probes.plans.common import SWAP_ENDS_JOBS, reboot_plan, reboot_step
from probes.plans.packages import open_driver_steps
from probes.queries.finding import RDMA_DEVICES, STAGED, Area, Outcome, Scope, found, need, passed, unknown
from probes.queries.module_need import PEERMEM_MISSING, dmabuf_comes_first
from probes.queries.modules import (
    DMABUF,
    DRIVER_VERSION,
    RELEASE,
    has_efa_only,
    impossible_by_design,
    module_of,
    no_gpu_or_rdma_device,
    peer_nics,
    plugin_only_driver,
    release_of,
)
from probes.snapshot.examination import Examination


def _not_applicable(examination: Examination) -> Outcome | None:
    """Return the outcome for a node without GPU and NIC, whose GPUs have no path or NICs have own checks."""
    absent = no_gpu_or_rdma_device(examination) or impossible_by_design(examination)
    if absent is None and has_efa_only(examination):
        return passed(Evidence("/sys/class/infiniband/*/device/driver", "efa, with its own peer module"))
    if absent is None and plugin_only_driver(examination).startswith("cxi"):
        return passed(Evidence("/sys/class/cxi", "Slingshot, where libfabric uses DMA-BUF itself"))
    return absent


AREA = Area("path", __package__, requires=(_not_applicable,))

_FIRST_OPEN_DRIVER, _FIRST_KERNEL = (515, 43, 4), (5, 12)
_NOT_LOADED = Evidence(DRIVER_VERSION, "not found: the driver is not loaded")
_EVERY_PROGRAM = "every RDMA program"
_CONFIG, _GPUS = "the kernel config", "the GPUs' compute capability"


def _severity(examination: Examination) -> Severity:
    """Return how severe it is to have no DMA-BUF: a note where nvidia_peermem works, else critical."""
    if peer_nics(examination.node) == ():
        return Severity.CRITICAL
    usable = map_known(examination.node.gpudirect, lambda direct: direct.peermem.usable)
    if isinstance(usable, Unknown):
        return Severity.WARNING
    return Severity.NOTE if usable else Severity.CRITICAL


def _peermem_note(examination: Examination) -> str:
    """Return the end of a cause: whether nvidia_peermem replaces DMA-BUF here."""
    if peer_nics(examination.node) == ():
        return " nvidia_peermem does not work with this node's NIC drivers."
    return {
        Severity.NOTE: " GPUDirect RDMA still works with nvidia_peermem.",
        Severity.CRITICAL: " nvidia_peermem is not usable either.",
    }.get(_severity(examination), "")


def _impact(examination: Examination) -> str:
    return "None while nvidia_peermem works." if _severity(examination) is Severity.NOTE else STAGED


def _causes(examination: Examination, *first: str) -> tuple[str, ...]:
    """Return the ids of the causes: `first`, then those of nvidia_peermem if that is easier to fix."""
    return first if dmabuf_comes_first(examination) else (*first, *PEERMEM_MISSING)


@AREA.warning("dmabuf-needs-open-module")
def dmabuf_needs_open_module(examination: Examination) -> Outcome:
    """Check the flavor of the loaded driver."""
    gpus = need(examination.node.gpus, DRIVER_VERSION, absent=_NOT_LOADED)
    flavor = need(gpus.driver.flavor, DRIVER_VERSION, absent=_NOT_LOADED)
    evidence = Evidence(DRIVER_VERSION, f"{flavor.value} kernel modules")
    if flavor is Flavor.OPEN:
        return passed(evidence)
    old = _old_gpus(examination)
    if not isinstance(old, Unknown) and old and len(old) == len(gpus.gpus):
        too_old = Evidence("nvidia-smi --query-gpu=compute_cap", "too old for the open modules")
        return passed(evidence, too_old)
    return found(
        f"Only the open kernel modules can export CUDA memory as DMA-BUF.{_peermem_note(examination)}",
        evidence,
        fix=reboot_plan(
            "Install the open kernel modules",
            *open_driver_steps(examination),
            reboot_step("Reboot, or reload the modules when no process uses a GPU"),
            disturbs=SWAP_ENDS_JOBS,
        ),
        severity=_severity(examination),
        impact=_impact(examination),
        part_of=_causes(examination, "dmabuf-driver-too-old"),
    )


def _old_gpus(examination: Examination) -> Maybe[tuple[tuple[str, str], ...]]:
    """Return (BDF, name and capability) of the GPUs that the open modules do not support."""
    gpus = examination.node.gpus
    if isinstance(gpus, Unknown):
        return gpus
    old = []
    for gpu in gpus.gpus:
        capability = gpu.compute_capability
        if isinstance(capability, Unknown):
            return capability
        if is_before(capability, TURING):
            old.append((gpu.bdf, f"GPU{gpu.index} {gpu.name}: {capability[0]}.{capability[1]}"))
    return tuple(old)


@AREA.warning("dmabuf-gpu-too-old")
def dmabuf_gpu_too_old(examination: Examination) -> Outcome:
    """Check for a compute capability below 7.5: Volta and older."""
    old = need(_old_gpus(examination), _GPUS)
    source = "nvidia-smi --query-gpu=compute_cap --format=csv"
    if not old:
        return passed(Evidence(source, "7.5 or newer"))
    only = "Use the proprietary driver, OFED and nvidia_peermem, the only path for these GPUs"
    return found(
        "DMA-BUF needs the open kernel modules, which support Turing (7.5) and newer GPUs."
        f"{_peermem_note(examination)}",
        *(Evidence(source, text) for _, text in old[:SHOWN]),
        fix=make_plan("Use nvidia-peermem", only, disturbs=SWAP_ENDS_JOBS),
        severity=_severity(examination),
        devices=tuple(bdf for bdf, _ in old),
        impact=_impact(examination),
        part_of=("gpu-too-old-for-gdr", *PEERMEM_MISSING),
    )


@AREA.warning("dmabuf-driver-too-old")
def dmabuf_driver_too_old(examination: Examination) -> Outcome:
    """Check the version of the loaded driver; DMA-BUF came with 515.43.04."""
    driver = map_known(examination.node.gpus, lambda gpus: gpus.driver.version)
    version = need(driver, "the driver's version", absent=_NOT_LOADED)
    numbers = parse_driver_version(version)
    if numbers is None:
        return unknown(f"needs the driver's version (malformed: {version})")
    if numbers >= _FIRST_OPEN_DRIVER:
        return passed(Evidence(DRIVER_VERSION, version))
    return found(
        f"DMA-BUF needs driver 515.43.04 or newer; {version} is loaded.{_peermem_note(examination)}",
        Evidence(DRIVER_VERSION, version),
        fix=reboot_plan("Install a newer driver", *open_driver_steps(examination), disturbs=SWAP_ENDS_JOBS),
        severity=_severity(examination),
        impact=_impact(examination),
        part_of=_causes(examination, "peermem-not-on-disk-old-driver"),
    )


def _answers(examination: Examination) -> dict[str, Maybe[bool]]:
    direct = examination.node.gpudirect
    return direct.nic_dmabuf if isinstance(direct, GpuDirectFacts) else {}


def _answering(examination: Examination, wanted: bool) -> tuple[str, ...]:
    """Return the NICs that gave this answer to the DMA-BUF probe."""
    return tuple(nic for nic, answer in _answers(examination).items() if answer is wanted)


def _probe_evidence(nics: tuple[str, ...], answer: str) -> Evidence:
    return Evidence("ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0)", f"{answer} on {join_limited(nics)}")


@AREA.warning("dmabuf-kernel-too-old")
def dmabuf_kernel_too_old(examination: Examination) -> Outcome:
    """Check the release where no NIC supports DMA-BUF; 5.12 is enough, and OFED adds it to older kernels."""
    release = Evidence("/proc/sys/kernel/osrelease", release_of(examination))
    supporting, refusing = _answering(examination, True), _answering(examination, False)
    if supporting:
        return passed(_probe_evidence(supporting, "supported"), release)
    if need(map_known(examination.node.kernel, lambda kernel: kernel.version), RELEASE) >= _FIRST_KERNEL:
        return passed(release)
    if not refusing:
        for answer in _answers(examination).values():
            need(answer, DMABUF, release)
        return unknown(f"needs {DMABUF}", release)
    return found(
        f"The RDMA stack has supported DMA-BUF since Linux 5.12.{_peermem_note(examination)}",
        release,
        _probe_evidence(refusing, "not supported"),
        fix=reboot_plan(
            "Update the kernel",
            "Boot kernel 5.12 or newer, or install an OFED that backports DMA-BUF",
            *_until_then(examination),
        ),
        severity=_severity(examination),
        impact=_impact(examination),
        part_of=_causes(examination),
    )


@AREA.warning("dmabuf-kernel-config")
def dmabuf_kernel_config(examination: Examination) -> Outcome:
    """Check the kernel config; dma-buf is part of the kernel and never listed in /proc/modules."""
    source = f"/boot/config-{release_of(examination)}"
    supporting = _answering(examination, True)
    if supporting:
        return passed(_probe_evidence(supporting, "supported"))
    if need(map_known(examination.node.kernel, lambda kernel: kernel.dma_shared_buffer), _CONFIG):
        return passed(Evidence(source, "CONFIG_DMA_SHARED_BUFFER=y"))
    return found(
        "Without this option, neither the GPU driver nor the NIC driver supports DMA-BUF."
        f"{_peermem_note(examination)}",
        Evidence(source, "CONFIG_DMA_SHARED_BUFFER is not set"),
        severity=_severity(examination),
        impact=_impact(examination),
        part_of=_causes(examination, "dmabuf-kernel-too-old"),
    )


def _until_then(examination: Examination) -> tuple[Step, ...]:
    """Return the interim step that uses nvidia_peermem, where the node has a NIC that it can serve."""
    step = instruction("Until then, use nvidia_peermem with OFED")
    return () if peer_nics(examination.node) == () else (step,)


@AREA.warning("dmabuf-nic-driver-lacks-support", data_path=True, scope=Scope.NODE)
def dmabuf_nic_driver_lacks_support(examination: Examination) -> Outcome:
    """Check each NIC's answer to the DMA-BUF probe of NCCL; the kernel config explains it for mlx5."""
    need(examination.node.gpudirect, DMABUF)
    refusing, supporting = _answering(examination, False), _answering(examination, True)
    if not refusing:
        for answer in _answers(examination).values():
            need(answer, f"{DMABUF} on /dev/infiniband/uverbsN")
        good = Evidence("/sys/class/infiniband", "no hardware RDMA device here")
        if supporting:
            good = _probe_evidence(supporting, "supported")
        need(examination.node.rdma, RDMA_DEVICES, absent=good)
        return passed(good)
    kernel = examination.node.kernel
    if not supporting and not isinstance(kernel, Unknown):
        version = kernel.version
        old = not isinstance(version, Unknown) and version < _FIRST_KERNEL
        if old or kernel.dma_shared_buffer is False:
            none = Evidence("kernel", "no DMA-BUF for any NIC")
            return passed(_probe_evidence(refusing, "not supported"), none)
    cause, plan, evidence = _why_refused(examination, refusing)
    severity = _severity(examination)
    names = {nic: _driver(examination, nic) for nic in refusing[:SHOWN]}
    path = "/sys/class/infiniband/{}/device/driver"
    drivers = [Evidence(path.format(nic), f"{driver}: not supported") for nic, driver in names.items()]
    return found(
        f"{cause}{_peermem_note(examination)}",
        *drivers,
        *evidence,
        fix=plan,
        # While other NICs support it, this costs bandwidth, but GPUDirect RDMA works.
        severity=Severity.WARNING if supporting and severity is Severity.CRITICAL else severity,
        devices=refusing,
        impact="" if supporting and severity is not Severity.NOTE else _impact(examination),
        part_of=_causes(examination),
    )


def _why_refused(
    examination: Examination, refusing: tuple[str, ...]
) -> tuple[str, Plan, tuple[Evidence, ...]]:
    """Return the cause by driver and kernel config, the fix, and further evidence."""
    names = join_limited(refusing)
    drivers = {_driver(examination, nic) for nic in refusing}
    kernel, module = examination.node.kernel, module_of(examination, "mlx5_ib")
    if drivers == {"mlx4_core"}:
        steps: tuple[Step, ...] = (
            instruction("Use nvidia_peermem with MLNX_OFED 4.9 LTS, the last release for ConnectX-3"),
            instruction("Or replace the card with a ConnectX-4 or newer"),
        )
        cause = f"The driver of ConnectX-3 and older cards (mlx4_ib) does not support DMA-BUF: {names}."
        return cause, Plan("Use nvidia_peermem", steps, disturbs=_EVERY_PROGRAM), ()
    # OFED builds its mlx5_ib with its own configuration; the config of the kernel does not apply to it.
    inbox = not isinstance(module, Unknown) and module.origin == "kernel"
    if drivers == {"mlx5_core"} and inbox and not isinstance(kernel, Unknown) and kernel.mlx5_dmabuf is False:
        options = "CONFIG_INFINIBAND_USER_MEM and CONFIG_INFINIBAND_ON_DEMAND_PAGING"
        step = f"Boot a kernel that has {options}, or install OFED with its own mlx5_ib"
        evidence = Evidence(f"/boot/config-{release_of(examination)}", f"{options} are not both set")
        cause = f"The kernel was built without {options}, and mlx5_ib needs both for DMA-BUF."
        return cause, reboot_plan("Boot another kernel", step, *_until_then(examination)), (evidence,)
    cause = f"The driver of {names} cannot register DMA-BUF memory."
    update = "Update this NIC's driver, and rdma-core on this node and in the jobs' images"
    if len(drivers) == 1 and (words := NO_DMABUF.get(*drivers)) is not None:
        cause, update = f"{words[0]}: {names}.", words[1]
    steps = (
        instruction(update),
        instruction("Until then, keep this NIC out of NCCL_IB_HCA"),
        *_until_then(examination),
    )
    return cause, Plan("Update the NIC driver", steps, disturbs=_EVERY_PROGRAM), ()


def _driver(examination: Examination, nic: str) -> str:
    device = examination.topology.devices.get(nic)
    return "unknown driver" if device is None else str(device.driver)
