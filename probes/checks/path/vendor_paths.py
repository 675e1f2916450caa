"""The paths of AWS EFA and HPE Slingshot, which use no nvidia_peermem, and Data Direct of ConnectX-8."""

from __future__ import annotations

from probes.base.evidence import Evidence, Severity, first_distinct
from probes.base.plan import Plan, Step, instruction, make_plan
from probes.base.text import join_limited, plural
from probes.base.unknown import Reason, Unknown, is_there, known, map_known
from probes.checks.nccl.library import newer, versions_of
from probes.facts.gpu.gpus import Flavor
from probes.facts.gpudirect import GdrPath, GpuDirectFacts, Requirement
from probes.facts.kernel.log import LogKind
from probes.facts.kernel.modules import EFA_PEERMEM
from probes.facts.pci.functions import DEVICES, PciFunction, PciKind, is_for_guests
from probes.facts.pci.nic_families import CONNECTX, CONNECTX_8
from probes.facts.rdma.data_direct import DATA_DIRECT_FUNCTION
from probes.facts.rdma.devices import RdmaDevice
from probes.nccl.settings import parse_number
from probes.plans.common import SWAP_ENDS_JOBS, reboot_plan
from probes.plans.load_modules import load_step
from probes.plans.packages import open_driver_steps
from probes.queries.finding import (
    PCI_FUNCTIONS,
    RDMA_DEVICES,
    Area,
    Outcome,
    Scope,
    end_with,
    found,
    need,
    passed,
    unknown,
)
from probes.queries.jobs import conclude, job_plan, jobs_of, maps, values_of
from probes.queries.modules import (
    MODULES,
    gpu_functions,
    impossible_by_design,
    is_present,
    message_evidence,
    module_messages,
    module_of,
    state_evidence,
)
from probes.queries.pcie_paths import functions_of, is_grace, is_guest
from probes.snapshot.examination import Examination

AREA = Area("path", __package__, requires=(impossible_by_design,))
DATA_DIRECT = Area("path", __package__, requires=(impossible_by_design,))
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
    rdma = need(examination.node.rdma, RDMA_DEVICES, absent=Evidence(_DEVICES, "no RDMA device here"))
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


@AREA.critical("efa-peermem-unusable", part_of=("nvidia-not-loaded", "efa-not-loaded"), scope=Scope.NODE)
def efa_peermem_unusable(examination: Examination) -> Outcome:
    """Check what each EFA says of its peer-memory provider; milder where DMA-BUF works."""
    efas = _efas(examination)
    direct = need(examination.node.gpudirect, _STATE)
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
        plan = reboot_plan(
            "Install the open kernel modules", *open_driver_steps(examination), disturbs=SWAP_ENDS_JOBS
        )
        return cause, plan, (Evidence("/proc/driver/nvidia/version", f"{flavor.value} kernel modules"),)
    refused = known(module_messages(examination, _UNUSABLE, modules=(EFA_PEERMEM,)), ())
    if refused:
        plan = Plan(f"Rebuild {EFA_PEERMEM}", _REBUILD)
        cause = f"{EFA_PEERMEM} could not be loaded because it does not match the NVIDIA driver."
        return cause, plan, message_evidence(examination, refused)
    if isinstance(module.on_disk, Unknown):
        absent = module.on_disk.reason is Reason.NOT_THERE
        cause = f"There is no {EFA_PEERMEM} for this kernel." if absent else f"{EFA_PEERMEM} is not loaded."
        listed = Evidence("modules.dep", str(module.on_disk))
        return cause, make_plan(f"Install {EFA_PEERMEM}", instruction(f"Install {_EFA_PACKAGE}")), (listed,)
    steps: tuple[Step, ...] = (load_step(examination, EFA_PEERMEM),)
    if is_present(module):
        steps = (instruction("Reload the EFA driver when no job is running: modprobe -r efa; modprobe efa"),)
        cause = f"{EFA_PEERMEM} is loaded, but the EFA driver does not find its symbols."
        return cause, Plan("Reload the EFA driver", steps), (state_evidence(module),)
    cause = f"{EFA_PEERMEM} is not loaded, and this EFA driver does not load it by itself."
    return cause, Plan(f"Load {EFA_PEERMEM}", steps), (state_evidence(module),)


@AREA.warning("efa-peermem-symbol-mismatch", part_of=("efa-peermem-unusable",))
def efa_peermem_symbol_mismatch(examination: Examination) -> Outcome:
    """Find symbols of nvidia.ko whose version the loaded efa_nv_peermem does not know.

    DKMS builds it once; an update of the NVIDIA driver changes the symbols. Milder where DMA-BUF works.
    """
    efas = _efas(examination)
    kinds = (LogKind.NO_SYMBOL_VERSION, LogKind.SYMBOL_VERSION)
    messages = need(module_messages(examination, kinds, ("nvidia_p2p_",), (EFA_PEERMEM,)), "the kernel log")
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


@AREA.critical("cxi-without-gpu-support", part_of=("nvidia-not-loaded",), scope=Scope.NODE)
def cxi_without_gpu_support(examination: Examination) -> Outcome:
    """Check for NVIDIA's P2P interface in cxi_ss1, and for open NVIDIA modules, which export DMA-BUFs."""
    rdma = need(examination.node.rdma, RDMA_DEVICES, absent=Evidence("/sys/class/cxi", "no RDMA NIC here"))
    nics = tuple(device.name for device in rdma.devices if known(device.driver, "").startswith("cxi"))
    if not nics or gpu_functions(examination) == ():
        return passed(Evidence("/sys/class/cxi", "no Slingshot NIC, or no NVIDIA GPU"))
    direct = need(examination.node.gpudirect, _STATE)
    row = next((row for row in direct.peermem.requirements if row.name.startswith("a cxi driver")), None)
    if row is None:
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
        fix=reboot_plan("Give the Slingshot driver access to GPU memory", *steps),
        devices=nics,
    )


# Data Direct: the function by which a ConnectX-8 reaches GPU memory on Grace without the CPU.

_VARIABLE = "NCCL_IB_DATA_DIRECT"
# rdma-core 54: libmlx5.so.1.25.54.0
_NEEDED = (("libnccl", "NCCL", (2, 27, 3), "2.27.3"), ("libmlx5", "rdma-core", (1, 25), "54"))


@DATA_DIRECT.warning("data-direct-unavailable", data_path=True)
def data_direct_unavailable(examination: Examination) -> Outcome:
    """Find DMA functions without driver or NIC, a libmlx5 that does not know them, and hidden functions."""
    functions = functions_of(examination)
    facts = need(examination.node.data_direct, PCI_FUNCTIONS)
    if not facts.functions:
        return _none_here(examination)
    here = [functions[bdf] for bdf in facts.functions if not is_for_guests(functions[bdf].driver)]
    unbound = [function for function in here if is_there(function.driver) is False]
    if unbound:
        return _without_driver(examination, unbound)
    answers = list(facts.of_devices.items())
    refused = [(name, answer) for name, answer in answers if isinstance(answer, Unknown)]
    absent = [(name, answer) for name, answer in refused if answer.reason is Reason.NOT_THERE]
    if absent:
        return _not_asked(examination, absent[0][1], [name for name, _ in absent])
    if refused:
        return unknown(f"needs the Data Direct function of {refused[0][0]} ({refused[0][1]})")
    paired = {answer for _, answer in answers if isinstance(answer, str)}
    left = [function.bdf for function in here if function.bdf not in paired]
    if left and answers:
        return found(
            f"mlx5_ib has found no NIC for {join_limited(left)}. It pairs the two by an ID in their VPD.",
            *first_distinct(
                Evidence(f"{DATA_DIRECT_FUNCTION} on {name}", answer or "none") for name, answer in answers
            ),
            devices=tuple(left),
        )
    shown = (
        Evidence(f"{DATA_DIRECT_FUNCTION} on {name}", answer)
        for name, answer in answers
        if isinstance(answer, str)
    )
    return passed(*first_distinct(shown) or (Evidence(DEVICES, "the DMA functions belong to guests"),))


def _none_here(examination: Examination) -> Outcome:
    """Judge a bus without DMA functions: a ConnectX-8 on Grace, with its switch above a GPU, has one."""
    functions = functions_of(examination)
    mellanox = [function for function in functions.values() if function.vendor_id == CONNECTX.vendor]
    nics = [nic for nic in mellanox if nic.kind is PciKind.NIC and nic.device_id == CONNECTX_8]
    gpus = [function for function in functions.values() if function.kind is PciKind.GPU]
    switches = {function.bdf for function in mellanox if function.kind is PciKind.BRIDGE}
    if not nics or not is_grace(examination) or not any(switches.intersection(gpu.chain) for gpu in gpus):
        return passed(Evidence(DEVICES, "no ConnectX DMA function (15b3:2100) here"))
    guest = is_guest(examination)
    return found(
        "A GPU is below a ConnectX-8's switch, but no DMA function (15b3:2100) is on the PCI bus.",
        Evidence(DEVICES, f"ConnectX-8: {join_limited(function.bdf for function in nics)}; no 15b3:2100"),
        fix=reboot_plan(
            "Make the functions visible again",
            *(
                ["On the host of the virtual machine, pass the DMA functions through, too"]
                * (guest is not False)
            ),
            *(["Update the NICs' firmware and power-cycle the node"] * (guest is not True)),
        ),
        devices=tuple(function.bdf for function in nics),
    )


def _without_driver(examination: Examination, unbound: list[PciFunction]) -> Outcome:
    return found(
        "No driver is bound to the DMA function. mlx5_ib supports it in Linux 6.12 or newer and in "
        "DOCA-OFED.",
        *first_distinct(Evidence(f"{DEVICES}/{function.bdf}/driver", "no driver") for function in unbound),
        Evidence("uname -r", known(examination.node.kernel_release, "unknown")),
        fix=reboot_plan(
            "Install a driver with Data Direct",
            "Boot Linux 6.12 or newer (Ubuntu: linux-nvidia-64k-6.14), or install DOCA-OFED",
            "After the reboot, look for the driver's messages in the kernel log (VPD, VU keyword)",
        ),
        devices=tuple(function.bdf for function in unbound),
    )


def _not_asked(examination: Examination, why: Unknown, nics: list[str]) -> Outcome:
    """Return what keeps libmlx5 from finding the functions: its own age, or the driver's."""
    devices = known(map_known(examination.node.rdma, lambda rdma: rdma.devices), ())
    bdfs = [device.bdf for device in devices if device.name in nics]
    return found(
        f"{join_limited(nics)}: {why.detail}.",
        Evidence(DATA_DIRECT_FUNCTION, why.detail),
        fix=make_plan(
            "Use rdma-core 54 or newer",
            "Install rdma-core 54 or newer, or DOCA-OFED with its user-space packages",
            instruction("Do the same in the jobs' images: they bring their own libmlx5", False),
            disturbs="every RDMA program, which must be restarted",
        ),
        devices=(*nics, *(bdf for bdf in bdfs if not isinstance(bdf, Unknown))),
    )


@DATA_DIRECT.warning("data-direct-off-in-job", data_path=True)
def data_direct_off_in_job(examination: Examination) -> Outcome:
    """Find NCCL_IB_DATA_DIRECT=0, and old copies of NCCL and libmlx5, each for the program that uses it.

    NCCL loads the libmlx5 of the image. A Python package such as NIXL's uses the copy that it brings, and its
    UCX then logs “direct NIC is disabled because declaration of mlx5dv_get_data_direct_sysfs_path was not
    found”.
    """
    if not need(examination.node.data_direct, PCI_FUNCTIONS).functions:
        return passed(Evidence(DEVICES, "no ConnectX DMA function (15b3:2100) here"))
    jobs = jobs_of(examination)
    remark = "disables Data Direct"
    off = list(
        values_of(examination, _VARIABLE, lambda _, value: remark if parse_number(value) == 0 else None)
    )
    steps = [f"Remove {_VARIABLE}=0, and measure with and without it"] if off else []
    shown, owners = [*off], set()
    for name, product, first, version in _NEEDED:
        old = [
            (process, library)
            for process in jobs.processes
            for library, numbers in versions_of(process, name)
            if numbers < first
            and (known(process.uverbs_files, ()) if library.bundled_by else maps(process, "libnccl"))
        ]
        shown += (Evidence(f"/proc/{process.pid}/maps", library.path) for process, library in old)
        owners |= {library.bundled_by for _, library in old}
        steps += newer((library for _, library in old), product, version)
    by_nccl = (
        "NCCL 2.27.3 and later use Data Direct with libmlx5 from rdma-core 54 or newer, unless "
        "NCCL_IB_DATA_DIRECT is 0."
    )
    packages = sorted(owners - {""})
    by_package = f"The libmlx5 that {join_limited(packages)} brings is older than rdma-core 54."
    causes = [by_nccl] * (bool(off) or "" in owners) + [by_package] * bool(packages)
    only = len(causes) == 1 and bool(packages)
    return conclude(
        jobs,
        shown,
        " ".join(causes),
        fix=job_plan("Let the job use Data Direct", *steps),
        severity=Severity.NOTE if only else None,
        impact=f"GPU traffic of {join_limited(packages)} goes through the CPU. The cost is not measured."
        if only
        else "",
    )
