"""GPU memory that the driver denies to NICs, and an old NCCL that does not see nvidia_peermem."""

from __future__ import annotations

from probes.base.plan import Plan, Step, instruction, make_plan
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.kernel.log import LogKind
from probes.plans.common import driver_option_plan, reboot_plan
from probes.queries.evidence_list import KERNEL_LOG, SHOWN, STAGED
from probes.queries.finding import (
    Area,
    Evidence,
    Outcome,
    Severity,
    found,
    need,
    needs,
    passed,
    unknown,
)
from probes.queries.module_need import loaded_peermem
from probes.queries.modules import (
    DMABUF,
    PEERMEM,
    message_evidence,
    module_messages,
)
from probes.queries.pcie_paths import is_guest
from probes.snapshot.examination import Examination

AREA = Area("path")

_SOURCE = "https://github.com/NVIDIA/open-gpu-kernel-modules, kernel-open/nvidia/"
_PARAMS = "/proc/driver/nvidia/params"
_OVERRIDE = "GrdmaPciTopoCheckOverride"
_LIBRARIES = "the libraries of all processes"
_MEMORY_PEERS = "/sys/kernel/mm/memory_peers"
# The first release that looks for /sys/module/nvidia_peermem/version is 2.23.4.
_FIRST_NCCL = (2, 23, 4)


@AREA.check(
    "p2p-topology-refused-override",
    Severity.CRITICAL,
    "A driver option denies every NIC access to GPU memory",
    f"{_SOURCE}nv-reg.h, NVreg_GrdmaPciTopoCheckOverride; nv-pci.c, nv_grdma_pci_topology_supported",
    ok="No driver option denies GPU memory to NICs",
    impact=STAGED,
    data_path=True,
)
def p2p_topology_refused_override(examination: Examination) -> Outcome:
    """Check NVreg_GrdmaPciTopoCheckOverride; 2 blocks DMA-BUF and nvidia_peermem, but not with C2C.

    What the driver lists decides, not its branch: 580.65.06 added the option, and R595 removed it.
    """
    gpus = examination.node.gpus
    value = need(map_known(gpus, lambda gpus: gpus.driver.parameters), _PARAMS).get(_OVERRIDE)
    if value != "2":
        return passed(Evidence(_PARAMS, f"{_OVERRIDE}: {value or 'not listed'}"))
    if not isinstance(gpus, Unknown) and gpus.gpus and all(known(gpu.c2c_links, 0) for gpu in gpus.gpus):
        # nv_grdma_pci_topology_supported allows coherent platforms before it looks at the option.
        coherent = Evidence("NVML, C2C links", "GPUs coherent with their CPU: the option has no effect")
        return passed(Evidence(_PARAMS, f"{_OVERRIDE}: {value}"), coherent)
    return found(
        "NVreg_GrdmaPciTopoCheckOverride=2 denies every topology. Registering GPU memory fails with errno "
        "524, both with DMA-BUF and with nvidia_peermem.",
        Evidence(_PARAMS, f"{_OVERRIDE}: {value}"),
        fix=driver_option_plan(
            "Remove the option",
            "Delete NVreg_GrdmaPciTopoCheckOverride=2 from `options nvidia` in /etc/modprobe.d",
        ),
        devices=("nvidia",),
    )


def _allow_steps(examination: Examination, is_alternative: bool = True) -> tuple[Step, ...]:
    """Return the option that skips the check, or what to do with a driver that has no such option.

    R595 removed it; GPU and NIC then need a common IOMMU group or root port. /proc/driver/nvidia/params lists
    the options. Sources: nv-pci.c; https://github.com/NVIDIA/aicr/issues/2459.
    """
    parameters = map_known(examination.node.gpus, lambda gpus: gpus.driver.parameters)
    if isinstance(parameters, Unknown) or _OVERRIDE in parameters:
        condition = f"{_PARAMS} lists it and " if isinstance(parameters, Unknown) else ""
        text = (
            f"{'Or, if' if is_alternative else 'If'} {condition}the machine is known to work, set"
            f" `options nvidia NVreg_{_OVERRIDE}=1` in modprobe.d, rebuild the initramfs and reboot"
        )
        return (instruction(text),)
    text = f"This driver has no NVreg_{_OVERRIDE} (R595 removed it). If the machine needs it, use branch R580"
    return (instruction(text),)


def _refused(examination: Examination, words: str, cause: str, fix: Plan) -> Outcome:
    """Check the kernel log for a refusal of the driver."""
    messages = need(module_messages(examination, (LogKind.P2P_REFUSED,), words=words), KERNEL_LOG)
    evidence = message_evidence(examination, messages)
    return found(cause, *evidence, fix=fix) if messages else passed(*evidence)


@AREA.check(
    "p2p-topology-refused",
    Severity.CRITICAL,
    "The driver denies a NIC access to GPU memory because of the chipset",
    f"{_SOURCE}nv-pci.c, nv_grdma_pci_topology_supported",
    ok="No NIC was denied GPU memory because of the chipset",
    impact=STAGED,
    data_path=True,
)
def p2p_topology_refused(examination: Examination) -> Outcome:
    """Check the log for `PCI topology not supported`; pairs below one switch are never refused."""
    cause = (
        "GPU and NIC have no common PCIe switch, and the driver lists this chipset as unable to carry "
        "peer-to-peer traffic (errno 524)."
    )
    plan = make_plan(
        "Pair GPUs and NICs below one switch",
        "Use the NIC below the same PCIe switch as the GPU (NCCL_IB_HCA; see gdrtop's matrix)",
        *_allow_steps(examination),
        disturbs="jobs, which must be restarted",
    )
    return _refused(examination, "PCI topology not supported", cause, plan)


@AREA.check(
    "p2p-topology-refused-force-pcie",
    Severity.CRITICAL,
    "The driver refuses the direct PCIe path: GPU and NIC are in different IOMMU groups",
    f"{_SOURCE}nv-dmabuf.c, FORCE_PCIE; rdma_topo(8) of rdma-core",
    ok="The driver did not refuse a direct PCIe path",
    impact="Traffic uses the path through the CPU (C2C) or host memory instead of the direct PCIe path.",
    data_path=True,
)
def p2p_topology_refused_force_pcie(examination: Examination) -> Outcome:
    """Check the log for `mapping type FORCE_PCIE`: Grace with NICs at the GPU's own switch."""
    cause = "On Grace the direct PCIe path needs GPU and NIC in one IOMMU group."
    if known(is_guest(examination), False):
        cause += " In a virtual machine, the hypervisor determines the groups."
        plan = reboot_plan("Allow the direct PCIe path", *_allow_steps(examination, is_alternative=False))
    else:
        cause += " ACS settings determine the groups."
        plan = reboot_plan(
            "Set ACS as rdma_topo requires",
            Step("Show which ACS settings the paths need", ("rdma_topo", "check")),
            "Set ACS as rdma_topo prints it (in firmware, or with pci=config_acs= at boot), then reboot",
            *_allow_steps(examination),
        )
    return _refused(examination, "FORCE_PCIE", cause, plan)


@AREA.check(
    "p2p-topology-refused-old-importer",
    Severity.CRITICAL,
    "The NIC driver does not support peer-to-peer DMA-BUF",
    f"{_SOURCE}nv-dmabuf.c, importer unable to handle MMIO",
    ok="The log shows no NIC driver without peer-to-peer DMA-BUF",
    impact=STAGED,
    data_path=True,
)
def p2p_topology_refused_old_importer(examination: Examination) -> Outcome:
    """Check the log for `importer unable to handle MMIO`."""
    cause = "The NIC driver attached to the DMA-BUF without peer-to-peer support."
    update = "Update the NIC driver with a newer kernel or a current OFED"
    plan = make_plan("Update the NIC driver", update, disturbs="every RDMA program")
    return _refused(examination, "importer unable to handle MMIO", cause, plan)


def _numbers(version: Maybe[str]) -> tuple[int, ...] | None:
    if isinstance(version, Unknown):
        return None
    parts = version.split(".")
    return tuple(int(part) for part in parts[:3]) if all(part.isdecimal() for part in parts) else None


@AREA.check(
    "memory-peers-missing-old-nccl",
    Severity.CRITICAL,
    "NCCL is too old to see nvidia_peermem on this kernel",
    "https://github.com/NVIDIA/nccl/issues/1676; NCCL release notes 2.23.4",
    ok="NCCL can see nvidia_peermem, or does not need it",
    impact=STAGED,
    data_path=True,
)
def memory_peers_missing_old_nccl(examination: Examination) -> Outcome:
    """Check for an old NCCL where memory_peers and DMA-BUF are missing; a missing directory alone is ok."""
    loaded_peermem(examination)
    peers = examination.reading.peermem.peers
    if not isinstance(peers, Unknown) or peers.reason is not Reason.NOT_THERE:
        need(peers, _MEMORY_PEERS)
        return passed(Evidence(_MEMORY_PEERS, "found"))
    absent = Evidence(_MEMORY_PEERS, "not found, as on all newer kernels")
    if need(need(examination.node.gpudirect, DMABUF).dmabuf.usable, DMABUF, absent):
        return passed(absent, Evidence("DMA-BUF", "usable, so NCCL does not need nvidia_peermem"))
    old, not_read = _old_nccl(examination)
    if old:
        return found(
            "NCCL before 2.23.4 looks for memory_peers, which this kernel does not have. It prints "
            "`GPU Direct RDMA Disabled`.",
            absent,
            *old[:SHOWN],
            fix=make_plan(
                "Update NCCL",
                "Put NCCL 2.23.4 or newer into the jobs' image (or LD_LIBRARY_PATH), and restart them",
                "Or install the open kernel modules: NCCL then uses DMA-BUF",
                disturbs="jobs, which must be restarted",
            ),
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
            numbers = _numbers(library.version)
            if numbers is not None and numbers < _FIRST_NCCL:
                old.append(Evidence(library.path, f"NCCL {library.version}"))
    if isinstance(processes, Unknown):
        return old, "" if processes.reason is Reason.NOT_THERE else needs(_LIBRARIES, processes)
    not_read = processes.not_read
    for process in processes.processes:
        if isinstance(process.libraries, Unknown):
            not_read = not_read or needs(_LIBRARIES, process.libraries)
            continue
        for mapped in process.libraries:
            numbers = _numbers(mapped.version)
            if mapped.name == "libnccl" and numbers is not None and numbers < _FIRST_NCCL:
                old.append(Evidence(f"/proc/{process.pid}/maps", f"NCCL {mapped.version}"))
    return old, not_read
