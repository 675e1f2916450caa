"""The paths of AWS EFA and HPE Slingshot, which use neither OFED nor nvidia_peermem."""

from __future__ import annotations

from probes.base.plan import Plan, Step, instruction, make_plan
from probes.base.text import plural
from probes.base.unknown import Reason, Unknown, known
from probes.facts.gpu.gpus import Flavor
from probes.facts.gpudirect import GdrPath, GpuDirectFacts, Requirement
from probes.facts.kernel.log import LogKind
from probes.facts.kernel.modules import EFA_PEERMEM
from probes.facts.rdma.devices import RdmaDevice
from probes.plans.common import REBOOT_ENDS_JOBS, SWAP_ENDS_JOBS
from probes.plans.load_modules import load_step
from probes.plans.packages import open_driver_steps
from probes.queries.evidence_list import RDMA_DEVICES, STAGED, join_limited
from probes.queries.finding import Area, Evidence, Outcome, Scope, Severity, end_with, found, need, passed
from probes.queries.modules import (
    MODULES,
    gpu_functions,
    is_present,
    message_evidence,
    module_messages,
    module_of,
    state_evidence,
)
from probes.queries.pcie_paths import functions_of
from probes.snapshot.examination import Examination

AREA = Area("path")
_EFA_SOURCE = "amzn-drivers, kernel/linux/efa_nv_peermem/src/efa_nv_peermem_main.c and efa/src/efa_p2p.c"
_CXI_SOURCE = "HewlettPackard/shs-cxi-driver, drivers/net/ethernet/hpe/ss1/cass_nvidia_gpu.c"
_SPARE = "None for programs that use DMA-BUF. Programs without it copy through host memory."
# aws-ofi-nccl, nccl_ofi_dmabuf.cpp: no DMA-BUF by default before v1.14.2, and not with these until v1.19.1.
_FIRST_GENERATIONS = (0xEFA0, 0xEFA1, 0xEFA2)
_PLUGIN_WITHOUT = (
    "aws-ofi-nccl before 1.19.2 does not offer DMA-BUF to NCCL on this EFA. Jobs with an older plugin may "
    "copy through host memory."
)
_DEVICES = "/sys/class/infiniband/*/device/driver"
_STATE = "the state of GPUDirect"
_EFA_PACKAGE = "AWS's EFA installer (efa_installer.sh), or its DKMS package efa-nv-peermem"
_UNUSABLE = (LogKind.EFA_PEERMEM, LogKind.SYMBOL_VERSION, LogKind.UNKNOWN_SYMBOL)
_REBUILD = (
    instruction(
        "Rebuild the module against the installed driver: dkms remove efa-nv-peermem/VERSION -k $(uname -r)"
    ),
    instruction("Then run: dkms install efa-nv-peermem/VERSION -k $(uname -r)"),
    instruction(
        "Reload the module when no job is running: modprobe -r efa_nv_peermem; modprobe efa_nv_peermem"
    ),
)


def _efas(examination: Examination) -> tuple[RdmaDevice, ...]:
    """Return the EFA devices, or end the check if there is none or no GPU."""
    absent = Evidence(_DEVICES, "no RDMA device here")
    rdma = need(examination.node.rdma, RDMA_DEVICES, absent=absent)
    efas = tuple(device for device in rdma.devices if device.driver == "efa")
    if not efas:
        end_with(passed(Evidence(_DEVICES, "no EFA here")))
    if gpu_functions(examination) == ():
        end_with(passed(Evidence("/sys/bus/pci/devices", "no NVIDIA GPU here")))
    return efas


def _by_dmabuf(
    examination: Examination, direct: GpuDirectFacts, devices: tuple[RdmaDevice, ...]
) -> tuple[Severity, str] | None:
    """Return severity and impact where DMA-BUF replaces EFA's own module on these devices; else None."""
    if direct.dmabuf.usable is not True or not all(direct.nic_dmabuf.get(device.name) for device in devices):
        return None
    functions = functions_of(examination)
    ids = {functions[bdf].device_id for device in devices if (bdf := known(device.bdf, "")) in functions}
    is_old = not ids.isdisjoint(_FIRST_GENERATIONS)
    return (Severity.WARNING, _PLUGIN_WITHOUT) if is_old else (Severity.NOTE, _SPARE)


@AREA.check(
    "efa-peermem-unusable",
    Severity.CRITICAL,
    "EFA finds no NVIDIA peer memory",
    _EFA_SOURCE,
    ok="EFA finds NVIDIA peer memory, or there is no EFA",
    impact=f"No GPUDirect RDMA over EFA. {STAGED}",
    part_of=("nvidia-not-loaded", "efa-not-loaded"),
    scope=Scope.NODE,
)
def efa_peermem_unusable(examination: Examination) -> Outcome:
    """Check what each EFA says of its peer-memory provider; milder where DMA-BUF works."""
    efas = _efas(examination)
    direct = need(examination.node.gpudirect, _STATE)
    if direct.by_design:
        return passed(Evidence("libcuda", f"not applicable by design: {direct.by_design}"))
    without = tuple(
        device for device in efas if need(direct.nic_peermem.get(device.name, False), _STATE) is False
    )
    if not without:
        served = f"NVIDIA peer memory on {plural(len(efas), 'EFA')}"
        return passed(Evidence(f"{efas[0].sysfs_path}/device", served))
    spare = _by_dmabuf(examination, direct, without)
    own = direct.peermem.requirements if direct.peermem.path is GdrPath.EFA else ()
    cause, fix, evidence = _why_unusable(examination)
    severity, impact = spare or (Severity.CRITICAL, "")
    more = " GPUDirect RDMA still works with DMA-BUF." if spare else ""
    return found(
        f"{cause}{more}",
        *(_evidence(row) for row in own[:1]),
        *evidence,
        fix=fix,
        severity=severity,
        impact=impact,
        devices=tuple(device.name for device in without),
    )


def _evidence(row: Requirement) -> Evidence:
    source, _, value = row.evidence.rpartition(": ")
    return Evidence(source, value)


def _why_unusable(examination: Examination) -> tuple[str, Plan, tuple[Evidence, ...]]:
    """Return why EFA's module cannot be used, the fix, and further evidence."""
    module = need(module_of(examination, EFA_PEERMEM), MODULES)
    gpus = examination.node.gpus
    flavor = gpus if isinstance(gpus, Unknown) else gpus.driver.flavor
    if flavor is Flavor.PROPRIETARY:
        cause = f"{EFA_PEERMEM} refuses NVIDIA's proprietary kernel modules."
        evidence = Evidence("/proc/driver/nvidia/version", f"{flavor.value} kernel modules")
        plan = make_plan(
            "Install the open kernel modules",
            *open_driver_steps(examination),
            needs_reboot=True,
            disturbs=SWAP_ENDS_JOBS,
        )
        return cause, plan, (evidence,)
    refused = known(module_messages(examination, _UNUSABLE, modules=(EFA_PEERMEM,)), ())
    if refused:
        plan = Plan(f"Rebuild {EFA_PEERMEM}", _REBUILD)
        cause = f"{EFA_PEERMEM} could not be loaded because it does not match the NVIDIA driver."
        return cause, plan, message_evidence(examination, refused)
    if isinstance(module.on_disk, Unknown):
        step = instruction(f"Install {_EFA_PACKAGE}")
        absent = module.on_disk.reason is Reason.NOT_THERE
        cause = f"There is no {EFA_PEERMEM} for this kernel." if absent else f"{EFA_PEERMEM} is not loaded."
        listed = Evidence("modules.dep", str(module.on_disk))
        return cause, make_plan(f"Install {EFA_PEERMEM}", step), (listed,)
    steps: tuple[Step, ...] = (load_step(examination, EFA_PEERMEM),)
    if is_present(module):
        steps = (instruction("Reload the EFA driver when no job is running: modprobe -r efa; modprobe efa"),)
        cause = f"{EFA_PEERMEM} is loaded, but the EFA driver does not find its symbols."
        return cause, Plan("Reload the EFA driver", steps), (state_evidence(module),)
    cause = f"{EFA_PEERMEM} is not loaded, and this EFA driver does not load it by itself."
    return cause, Plan(f"Load {EFA_PEERMEM}", steps), (state_evidence(module),)


@AREA.check(
    "efa-peermem-symbol-mismatch",
    Severity.WARNING,
    "efa_nv_peermem was built for another NVIDIA driver",
    "https://github.com/awslabs/amazon-eks-ami/issues/2672",
    ok="efa_nv_peermem matches the NVIDIA driver, or is not used",
    impact="Registering GPU memory may fail or corrupt data in programs that use EFA without DMA-BUF.",
    part_of=("efa-peermem-unusable",),
)
def efa_peermem_symbol_mismatch(examination: Examination) -> Outcome:
    """Find symbols of nvidia.ko whose version the loaded efa_nv_peermem does not know.

    DKMS builds it once; an update of the NVIDIA driver changes the symbols. Milder where DMA-BUF works.
    """
    efas = _efas(examination)
    kinds = (LogKind.NO_SYMBOL_VERSION, LogKind.SYMBOL_VERSION)
    messages = need(module_messages(examination, kinds, "nvidia_p2p_", (EFA_PEERMEM,)), "the kernel log")
    if not messages:
        return passed(*message_evidence(examination, messages))
    direct = examination.node.gpudirect
    spare = _by_dmabuf(examination, direct, efas) if isinstance(direct, GpuDirectFacts) else None
    return found(
        "DKMS built efa_nv_peermem for an earlier NVIDIA driver and did not rebuild it after the driver "
        "update.",
        *message_evidence(examination, messages),
        fix=Plan(f"Rebuild {EFA_PEERMEM}", _REBUILD),
        severity=spare[0] if spare else None,
        impact=spare[1] if spare else "",
        devices=(EFA_PEERMEM,),
    )


@AREA.check(
    "cxi-without-gpu-support",
    Severity.CRITICAL,
    "The Slingshot driver cannot reach GPU memory",
    _CXI_SOURCE,
    ok="The Slingshot driver, if any, can reach GPU memory",
    impact=f"No GPUDirect RDMA over Slingshot. {STAGED}",
    part_of=("nvidia-not-loaded",),
    scope=Scope.NODE,
)
def cxi_without_gpu_support(examination: Examination) -> Outcome:
    """Check for NVIDIA's P2P interface in cxi_ss1, and for open NVIDIA modules, which export DMA-BUFs."""
    rdma = need(examination.node.rdma, RDMA_DEVICES, absent=Evidence("/sys/class/cxi", "no RDMA NIC here"))
    nics = tuple(device.name for device in rdma.devices if known(device.driver, "").startswith("cxi"))
    if not nics or gpu_functions(examination) == ():
        return passed(Evidence("/sys/class/cxi", "no Slingshot NIC, or no NVIDIA GPU"))
    direct = need(examination.node.gpudirect, _STATE)
    row = next((row for row in direct.peermem.requirements if row.name.startswith("a cxi driver")), None)
    if row is None or direct.by_design:
        return passed(Evidence("/sys/class/cxi", "this node also has NICs with verbs"))
    if need(row.met, "the NVIDIA driver's kernel modules"):
        return passed(_evidence(row))
    steps = (
        *open_driver_steps(examination),
        instruction("Or rebuild the cray-cxi-driver package with the NVIDIA driver's sources installed"),
    )
    logged = known(module_messages(examination, (LogKind.CXI_GPU,)), ())
    return found(
        f"The driver of {join_limited(nics)} was built without NVIDIA's headers, and the proprietary NVIDIA "
        "kernel modules export no DMA-BUF.",
        _evidence(row),
        Evidence("/proc/driver/nvidia/version", "proprietary kernel modules"),
        *(message_evidence(examination, logged) if logged else ()),
        fix=Plan(
            "Give the Slingshot driver access to GPU memory",
            steps,
            needs_reboot=True,
            disturbs=REBOOT_ENDS_JOBS,
        ),
        devices=nics,
    )
