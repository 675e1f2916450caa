"""Which path from a NIC to GPU memory is usable, which GPUs have none, and what the driver denies to NICs."""

from __future__ import annotations

from probes.bandwidth.model.gains import gains_of_gdr
from probes.base.evidence import Evidence, Severity, first_n
from probes.base.plan import Plan, Step, instruction, make_plan, plan_or_none
from probes.base.text import SHOWN, join_limited, plural, version_numbers
from probes.base.unknown import UNREAD, Reason, Unknown, is_there, known, map_known
from probes.checks.nccl.library import versions_of
from probes.facts.gpu.gpus import DRIVER_PARAMETERS
from probes.facts.gpudirect import MEMORY_PEERS, GdrPath, PathState, parse_driver_version
from probes.facts.gpudirect_probe import TOPOLOGY_CHECK, why_topology_allowed
from probes.facts.kernel.log import LogKind
from probes.facts.kernel.modules import PEERMEM
from probes.facts.pci.nic_families import EFA, SLINGSHOT
from probes.plans.boot import driver_option_plan, initramfs_command
from probes.plans.common import reboot_plan
from probes.plans.load_modules import load_peermem, refused_before
from probes.queries.finding import (
    KERNEL_LOG,
    RDMA_DEVICES,
    Area,
    Outcome,
    end_with,
    found,
    need,
    needs,
    passed,
    unknown,
)
from probes.queries.kernel_log import IMPORTER, age_of, importer_refutes, is_in_use, nic_drivers
from probes.queries.module_need import DMABUF_MISSING, NCCL_SEES_PEERMEM, PEERMEM_MISSING, loaded_peermem
from probes.queries.modules import (
    DMABUF,
    impossible_by_design,
    message_evidence,
    module_messages,
    nics_of,
    no_gpu_or_nic,
    no_gpu_or_rdma_device,
    peer_nics,
)
from probes.queries.pcie_paths import is_grace, is_guest, near_paths
from probes.queries.ports import PORT_DOWN, ports_of
from probes.snapshot.examination import Examination
from probes.snapshot.verdict import State

AREA = Area("path", __package__)
GPUS = Area("path", __package__, is_moving=True)  # a port that goes down takes its GPUs away at once


def _unmet(state: PathState) -> list[Evidence]:
    """Return the requirements that are not met, as evidence."""
    return [
        Evidence(requirement.evidence.partition(": ")[0], requirement.lack or requirement.name)
        for requirement in state.requirements
        if not isinstance(requirement.met, Unknown) and not requirement.met
    ]


@AREA.critical(
    "no-gdr-path",
    part_of=(
        *("nvidia-not-loaded", "mlx5-core-not-loaded", "mlx4-core-not-loaded", "ib-core-not-loaded"),
        *("ib-uverbs-not-loaded", "mlx5-ib-not-loaded", "mlx4-ib-not-loaded", "gpu-too-old-for-gdr"),
        *DMABUF_MISSING,
        *PEERMEM_MISSING,
        *("dmabuf-gpu-too-old", "efa-not-loaded", "cxi-ss1-not-loaded", "cxi-user-not-loaded"),
        *("efa-peermem-unusable", "cxi-without-gpu-support"),
    ),
    requires=(impossible_by_design,),
)
def no_gdr_path(examination: Examination) -> Outcome:
    """Find a node on which neither path is usable."""
    if no_gpu_or_nic(examination) is not None:
        end_with(no_gpu_or_rdma_device(examination))
    rdma = examination.node.rdma
    if isinstance(rdma, Unknown) and rdma.reason is Reason.NOT_YET:
        need(rdma, RDMA_DEVICES)  # they decide which paths there are
    direct = need(examination.node.gpudirect, "the state of GPUDirect")
    states: tuple[PathState, ...] = (direct.dmabuf, direct.peermem)
    has_no_peer = direct.peermem.path is GdrPath.PEERMEM and peer_nics(examination.node) == ()
    if direct.peermem.path is GdrPath.CXI:  # libfabric hands DMA-BUFs to the driver itself
        states = (direct.peermem,)
    elif has_no_peer:
        states = (direct.dmabuf,)  # no NIC here could use nvidia_peermem
    ways = " or ".join(state.path.value for state in states)
    usable = [state.path.value for state in states if need(state.usable, f"the state of {state.path.value}")]
    if usable:
        return passed(Evidence("usable paths", ", ".join(usable)))
    # Slingshot NICs are the only RDMA cards; without their driver they have no device.
    is_slingshot = known(nics_of(examination, SLINGSHOT), ()) and not known(nics_of(examination, EFA), ())
    if has_no_peer and is_slingshot:
        return found(
            "libfabric reaches GPU memory through the cxi devices of Slingshot NICs, but there are none.",
            Evidence("/sys/class/cxi", "no device"),
        )
    need(examination.node.pci, "the PCI devices")  # without a GPU or a NIC, nothing is missing
    reasons = dict.fromkeys(evidence.value for state in states for evidence in _unmet(state)[:1])
    # Loading nvidia_peermem is enough where nothing else is missing, and the kernel has not refused it.
    is_unloaded = direct.peermem.path is GdrPath.PEERMEM and len(_unmet(direct.peermem)) == 1
    may_load = is_unloaded and not refused_before(examination, PEERMEM)
    return found(
        f"A NIC reaches GPU memory through {ways}, but {', and '.join(reasons)}.",
        *(evidence for state in states for evidence in _unmet(state)),
        fix=plan_or_none(load_peermem(examination)) if may_load else None,
        gains=gains_of_gdr(examination),
    )


@AREA.critical(
    "cuda-fails-to-start",
    data_path=True,
    part_of=(
        *("nvidia-not-loaded", "driver-library-mismatch", "gpu-fabric-not-registered"),
        *("fabric-manager-down", "fabric-manager-down-absent", "fabric-manager-down-version"),
        *("nvlsm-down", "nvlsm-missing", "ib-umad-missing", "gpu-driver-start-failed"),
        *("smmu-sva-missing", "smmu-sva-refused"),
    ),
)
def cuda_fails_to_start(examination: Examination) -> Outcome:
    """Find an error of cuInit that every CUDA program on the node gets."""
    end_with(no_gpu_or_nic(examination))
    failure = need(need(examination.node.gpudirect, "the state of GPUDirect").cuda_failure, "CUDA's response")
    if not failure:
        return passed(Evidence("cuInit(0)", "no error caused by the node"))
    return found(
        f"{failure}.",
        Evidence("cuInit(0)", failure.partition("cuInit(0) ")[2] or failure),
        takes=examination.usability.gpus,
        devices=examination.usability.gpus,
    )


@GPUS.warning(
    "gpu-not-served",
    data_path=True,
    part_of=(
        *("gpu-without-driver", "gpu-without-driver-nouveau", "gpu-without-driver-passed-through"),
        *("xid-79-fell-off-bus", "xid-119-gsp-timeout", "gpu-missing-from-nvml", "gpu-driver-start-failed"),
        *("driver-library-mismatch", "nvidia-not-loaded"),
        *("fabric-manager-down", "fabric-manager-down-absent", "fabric-manager-down-version"),
        *("nvlsm-down", "nvlsm-missing", "ib-umad-missing", "gpu-fabric-not-registered"),
        *("no-gdr-path", "gpu-too-old-for-gdr", "dmabuf-gpu-too-old"),
        *("pcie-function-gone", "nic-without-driver", "nic-without-rdma-device", *PORT_DOWN),
        *("dmabuf-nic-driver-lacks-support", "efa-peermem-unusable", "nic-without-driver-passed-through"),
        *("gpu-nic-cross-socket", "gpu-nic-through-cpu", "gpu-without-near-nic", "nccl-topo-file-stale"),
    ),
)
def gpu_not_served(examination: Examination) -> Outcome:
    """Find GPUs that no NIC serves: the GPU or its near NICs do not work, or no NIC is near enough."""
    end_with(no_gpu_or_nic(examination))
    need(examination.node.gpudirect, "the state of GPUDirect")
    usability = examination.usability
    if not usability.unserved and usability.state is State.UNKNOWN:
        end_with(unknown(f"needs the paths between GPUs and NICs ({usability.reason})"))
    if not usability.unserved:
        for gpu in need(examination.node.gpus, "the GPUs").gpus:
            # Where NVML is not installed or answers with an error, other checks say so.
            if isinstance(gpu.nvml, Unknown) and gpu.nvml.reason in UNREAD:
                need(gpu.nvml, "NVML, which says whether each GPU responds")
        served = f"{len(usability.nics)} of {plural(len(usability.gpus), 'GPU')} have a NIC"
        return passed(Evidence("paths between GPUs and NICs", served))
    reasons = tuple(usability.unserved.values())
    others = len(reasons) - 1
    more = f" {plural(others, 'other GPU')} cannot use GPUDirect RDMA either." if others else ""
    return found(
        f"{reasons[0]}.{more}",
        *first_n(Evidence(gpu, reason) for gpu, reason in usability.unserved.items()),
        fix=_plan_for_unserved(examination),
        devices=tuple(usability.unserved),
        takes=tuple(usability.unserved),
    )


def _plan_for_unserved(examination: Examination) -> Plan | None:
    """Return how a GPU gets a NIC; None where one is near enough, so that something else keeps them apart."""
    unserved = examination.usability.unserved
    named = {word for why in unserved.values() for word in why.split()}  # the NICs that should serve a GPU
    ports = [port for port in known(ports_of(examination), ()) if port.device.name in named]
    if down := [port.name for port in ports if not port.is_active]:
        step = f"Bring up {join_limited(down)}, near the GPU"
    elif all(examination.topology.near_nics.get(gpu) for gpu in unserved):
        return None
    else:
        step = "Move a NIC below the GPU's PCIe switch, or pair the GPU with another NIC"
    return make_plan("Give the GPU a working NIC", step)


# GPU memory that the driver denies to NICs, and an old NCCL that does not see nvidia_peermem.

REFUSALS = Area("path", __package__, requires=(impossible_by_design,))

_LIBRARIES = "the libraries of all processes"


@REFUSALS.critical("p2p-topology-refused-override", data_path=True)
def p2p_topology_refused_override(examination: Examination) -> Outcome:
    """Check NVreg_GrdmaPciTopoCheckOverride; 2 blocks DMA-BUF and nvidia_peermem from 580.65.06 on."""
    gpus = need(examination.node.gpus, DRIVER_PARAMETERS)
    allowed = need(why_topology_allowed(gpus), DRIVER_PARAMETERS)
    if allowed:
        return passed(Evidence(DRIVER_PARAMETERS, allowed))
    return found(
        "NVreg_GrdmaPciTopoCheckOverride=2 denies every topology. Registering GPU memory fails with errno "
        "524, both with DMA-BUF and with nvidia_peermem.",
        Evidence(DRIVER_PARAMETERS, f"{TOPOLOGY_CHECK}: 2"),
        fix=driver_option_plan(
            examination,
            "Remove the option",
            "Delete NVreg_GrdmaPciTopoCheckOverride=2 from `options nvidia` in /etc/modprobe.d",
        ),
        devices=("nvidia",),
        refutes=(GdrPath.DMABUF, GdrPath.PEERMEM),
    )


def _allow_steps(
    examination: Examination, first_without: int, is_alternative: bool = True
) -> tuple[Step, ...]:
    """Return the option that skips the check, or what to do with a driver that has no such option.

    `first_without`: the branch whose check does not ask for it. /proc/driver/nvidia/params lists the options.
    Sources: nv-pci.c of 580.65.06 to 595.45.04; https://github.com/NVIDIA/aicr/issues/2459.
    """
    parameters = map_known(examination.node.gpus, lambda gpus: gpus.driver.parameters)
    version = known(map_known(examination.node.gpus, lambda gpus: gpus.driver.version), "")
    branch = (parse_driver_version(version) or (0,))[0]
    if branch < first_without and (isinstance(parameters, Unknown) or TOPOLOGY_CHECK in parameters):
        condition = f"{DRIVER_PARAMETERS} lists it and " if isinstance(parameters, Unknown) else ""
        text = (
            f"{'Or, if' if is_alternative else 'If'} {condition}the machine is known to work, set"
            f" `options nvidia NVreg_{TOPOLOGY_CHECK}=1` in modprobe.d, rebuild the initramfs with"
            f" {initramfs_command(examination)}, and reboot"
        )
        return (instruction(text),)
    why = "it came with 570.86.16" if 0 < branch < 570 else "R595 removed it"
    text = f"This driver has no NVreg_{TOPOLOGY_CHECK} ({why}). If the machine needs it, use branch R580"
    return (instruction(text),)


def _refused(
    examination: Examination,
    words: tuple[str, ...],
    cause: str,
    fix: Plan | None,
    takes: tuple[str, ...] = (),
    refutes: tuple[GdrPath, ...] = (),
    of_nics: bool = False,
) -> Outcome:
    """Check the kernel log for a refusal of the driver, which is over once the driver was loaded again.

    It is a note then, for the log does not show whether programs have tried since. `of_nics`: as in age_of.
    """
    messages = need(module_messages(examination, (LogKind.P2P_REFUSED,), words=words), KERNEL_LOG)
    evidence = message_evidence(examination, messages)
    if not messages:
        return passed(*evidence)
    is_over, when = age_of(examination, messages[-1], of_nics)
    if is_over:
        return found(f"{cause} {when}", *evidence, fix=fix, severity=Severity.NOTE, data_path=False)
    if is_in_use(examination, refutes):
        used = "Now GPU memory is registered through this path, so not every attempt is refused."
        return found(f"{cause} {when} {used}", *evidence, fix=fix)
    return found(f"{cause} {when}", *evidence, fix=fix, takes=takes, refutes=refutes)


@REFUSALS.critical("p2p-topology-refused", data_path=True)
def p2p_topology_refused(examination: Examination) -> Outcome:
    """Check the log for `PCI topology not supported`; pairs below one switch are never refused.

    The chipset is the same for all other pairs, so the driver refuses each of them, but for GPUs coherent
    with their CPU, and in a virtual machine.
    """
    is_exempt = is_grace(examination) or is_guest(examination) is not False
    near = {path.a for path in near_paths(examination)}
    far = () if is_exempt else tuple(gpu for gpu in examination.usability.gpus if gpu not in near)
    cause = (
        "GPU and NIC have no common PCIe switch, and the driver lists this chipset as unable to carry "
        "peer-to-peer traffic (errno 524, with DMA-BUF and with nvidia_peermem)."
    )
    if far:
        cause += f" {plural(len(far), 'GPU has', 'GPUs have')} no NIC below a common switch."
    elif not is_exempt:
        cause += " Every GPU also has a NIC below its own switch, which is not refused."
    plan = make_plan(
        "Pair GPUs and NICs below one switch",
        "Use the NIC below the same PCIe switch as the GPU (NCCL_IB_HCA; see gdrtop's matrix)",
        *_allow_steps(examination, first_without=600),
        disturbs="jobs, which must be restarted",
    )
    is_all = bool(far) and set(far) == set(examination.usability.gpus)
    refutes = (GdrPath.DMABUF, GdrPath.PEERMEM) if is_all else ()
    return _refused(examination, ("PCI topology not supported",), cause, plan, far, refutes)


@REFUSALS.critical("p2p-topology-refused-force-pcie", data_path=True)
def p2p_topology_refused_force_pcie(examination: Examination) -> Outcome:
    """Check the log for `mapping type FORCE_PCIE`: Grace with NICs at the GPU's own switch.

    It refutes no path: the mapping over C2C is allowed on coherent platforms.
    """
    cause = "On Grace the direct PCIe path needs GPU and NIC in one IOMMU group."
    if known(is_guest(examination), False):
        cause += " In a virtual machine, the hypervisor determines the groups."
        steps = _allow_steps(examination, first_without=595, is_alternative=False)
        plan = reboot_plan("Allow the direct PCIe path", *steps)
    else:
        cause += " ACS settings determine the groups."
        plan = reboot_plan(
            "Set ACS as rdma_topo requires",
            Step("Show which ACS settings the paths need", ("rdma_topo", "check")),
            "Set ACS as rdma_topo prints it (in firmware, or with pci=config_acs= at boot), then reboot",
            *_allow_steps(examination, first_without=595),
        )
    if known(map_known(examination.node.data_direct, lambda facts: bool(facts.functions)), False):
        cause += " UCX 1.20 and 1.21 also ask for it where a NIC with Data Direct is down (errno 524)."
    return _refused(examination, ("FORCE_PCIE",), cause, plan)


@REFUSALS.critical("p2p-topology-refused-old-importer", data_path=True)
def p2p_topology_refused_old_importer(examination: Examination) -> Outcome:
    """Check the log for the words of IMPORTER, which the driver says of any GPU's memory."""
    drivers = nic_drivers(examination)
    cause = f"{' or '.join(drivers)} attached to the DMA-BUF without peer-to-peer support, which is refused."
    return _refused(examination, IMPORTER, cause, None, refutes=importer_refutes(examination), of_nics=True)


@REFUSALS.critical("memory-peers-missing-old-nccl", data_path=True)
def memory_peers_missing_old_nccl(examination: Examination) -> Outcome:
    """Check for an old NCCL where memory_peers and DMA-BUF are missing; a missing directory alone is ok."""
    loaded_peermem(examination)
    if need(is_there(examination.reading.peermem.peers), MEMORY_PEERS):
        return passed(Evidence(MEMORY_PEERS, "found"))
    absent = Evidence(MEMORY_PEERS, "not found, as on all newer kernels")
    if need(need(examination.node.gpudirect, DMABUF).dmabuf.usable, DMABUF, absent):
        return passed(absent, Evidence("DMA-BUF", "usable, so NCCL does not need nvidia_peermem"))
    old, not_read = _old_nccl(examination)
    if old:
        return found(
            "NCCL before 2.23.4 looks for memory_peers, which this kernel does not have. It prints "
            "`GPU Direct RDMA Disabled`.",
            absent,
            *old[:SHOWN],
            devices=(PEERMEM,),
        )
    if not_read:
        return unknown(not_read, absent)
    return passed(absent)


def _old_nccl(examination: Examination) -> tuple[list[Evidence], str]:
    """Return the old NCCL libraries, and what is needed to read those of all processes."""
    libraries, processes = examination.libraries, examination.processes
    old = []
    if not isinstance(libraries, Unknown):
        for library in libraries.found.get("libnccl.so.2", ()):
            # A version without numbers, (), says nothing.
            if () < version_numbers(known(library.version, "")) < NCCL_SEES_PEERMEM:
                old.append(Evidence(library.path, f"NCCL {library.version}"))
    if isinstance(processes, Unknown):
        return old, "" if processes.reason is Reason.NOT_THERE else needs(_LIBRARIES, processes)
    not_read = processes.not_read
    for process in processes.processes:
        if isinstance(process.libraries, Unknown):
            not_read = not_read or needs(_LIBRARIES, process.libraries)
            continue
        for mapped, version in versions_of(process, "libnccl"):
            if () < version < NCCL_SEES_PEERMEM:
                old.append(Evidence(f"/proc/{process.pid}/maps", f"NCCL {mapped.version}"))
    return old, not_read
